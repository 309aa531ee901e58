"""Spans by the GenAI conventions, links across pauses and processes, and no content unless it was asked for."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from adjourn import Adjourn, AgentInit, Interrupt, Limits, MemoryStore, ToolRunContext, restart_tool, tool
from adjourn.errors import SessionConflict
from adjourn.events import UserSaid
from adjourn.ledger import Leg
from adjourn.loop import Driver
from adjourn.model import ModelReply
from adjourn.observe import Observed, Watched, tell
from adjourn.parts import Media, Message, Part
from adjourn.setting import Setting
from adjourn.state import CallModel, RunTools
from adjourn.testing import FakeClock, ScriptedModel, call
from adjourn.tracing import Tracing
from adjourn.turn import begin, next_step, record
from observe.observe_kit import CANARY, EVENTS, USED, Recorder, eventful, pay, pay_app

RUNNER = Path(__file__).parent / "trace_runner.py"


class Traced:
    """A tracer provider whose finished spans can be looked at."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, start: str) -> list[ReadableSpan]:
        return [s for s in self.spans if s.name.startswith(start)]


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_a_turn_is_an_invoke_agent_span_with_chats_and_tools_in_it(traced: Traced) -> None:
    reply = ModelReply(Message("model", [pay()]), "stop", USED)
    _, agent = pay_app([Tracing(traced.provider)], [reply, "done"])
    session = agent.connect(AgentInit(session_id="s1"))
    first = await session.send("go").output
    await session.interrupts[0].restart().output
    assert [s.name for s in traced.spans] == [
        "chat scripted",
        "execute_tool pay",
        "invoke_agent clerk",
        "execute_tool pay",
        "chat scripted",
        "invoke_agent clerk",
    ]
    chat, tool, turn, again, _, resumed = traced.spans
    assert [parent(chat), parent(tool)] == [ids(turn)[1]] * 2
    assert parent(again) == ids(resumed)[1]
    assert attributes(turn) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "custom",
        "gen_ai.request.model": "scripted",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "s1",
        "gen_ai.response.finish_reasons": ("interrupted",),
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
        "adjourn.resumed": False,
        "adjourn.turn_id": first.snapshot_id,
        "adjourn.snapshot_id": first.snapshot_id,
        "adjourn.outcome": "interrupted",
        "adjourn.pauses": 1,
        "adjourn.model_calls": 1,
    }
    assert attributes(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "custom",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": True,
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "s1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.reasoning.output_tokens": 10,
    }
    shown = attributes(again)
    assert shown.pop("gen_ai.tool.call.id").startswith("c_")
    assert shown.pop("adjourn.interrupt_id").startswith("i_")
    assert shown == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "s1",
        "adjourn.attempt": 1,
        "adjourn.restarts": 1,
    }
    assert {s.kind for s in traced.spans} == {SpanKind.INTERNAL}  # a scripted model is in this process


async def test_a_pause_is_no_error_and_is_an_event_of_its_turn(traced: Traced) -> None:
    _, agent = pay_app([Tracing(traced.provider)], [pay()])
    await agent.connect().send("go").output
    assert all(s.status.status_code is StatusCode.UNSET for s in traced.spans)
    [tool] = traced.named("execute_tool")
    assert attributes(tool)["adjourn.outcome"] == "paused"
    [turn] = traced.named("invoke_agent")
    [event] = [e for e in turn.events if e.name == "adjourn.pause"]
    shown = dict(event.attributes or {})
    assert (shown["adjourn.name"], shown["adjourn.reason"]) == ("pay", "tool")
    assert str(shown["adjourn.interrupt_id"]).startswith("i_")


async def test_the_leg_that_resumes_is_linked_to_the_one_that_paused(traced: Traced) -> None:
    _, agent = pay_app([Tracing(traced.provider)], [pay(), pay(4), "done", "more"])
    session = agent.connect()
    await session.send("go").output
    await session.interrupts[0].restart().output
    await session.interrupts[0].respond("by hand").output
    await session.send("next").output
    first, second, third, other = traced.named("invoke_agent")
    assert [linked(s) for s in (first, second, third, other)] == [[], [ids(first)], [ids(second)], []]
    assert [dict(n.attributes or {}) for n in third.links] == [{"adjourn.link": "resumes"}]
    assert len({ids(s)[0] for s in (first, second, third, other)}) == 4  # each is a trace of its own


async def test_a_generate_and_a_session_without_a_store_are_linked_in_their_process(traced: Traced) -> None:
    ai = Adjourn(observers=[Tracing(traced.provider)], model=ScriptedModel([call("ask", {}), "done"] * 2))

    @ai.tool()
    async def ask(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "yes"

    paused = await ai.generate("go", tools=[ask])
    await ai.generate(resume_restart=restart_tool(interrupt=paused.interrupts[0]))
    session = ai.define_agent("a").connect()
    await session.send("go").output
    await session.interrupts[0].restart().output
    plain, plain_resumed, first, second = traced.named("invoke_agent")
    assert (plain.name, linked(plain_resumed)) == ("invoke_agent", [ids(plain)])
    assert linked(second) == [ids(first)]


def _run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_three_processes_on_one_file_are_one_story(tmp_path: Path) -> None:
    path = str(tmp_path / "traced.db")
    paused = _run("pause", path, "")
    [before] = [s for s in paused["spans"] if s["name"] == "invoke_agent clerk"]
    decided = _run("decide", path, paused["interrupt"])
    [decision] = decided["spans"]
    assert decision["name"] == "decide pay"
    assert decision["links"] == [[before["trace"], before["span"], {"adjourn.link": "decides"}]]
    assert decision["attributes"]["adjourn.verb"] == "restart"
    resumed = _run("resume", path, "")
    [after] = [s for s in resumed["spans"] if s["name"] == "invoke_agent clerk"]
    assert after["links"] == [[before["trace"], before["span"], {"adjourn.link": "resumes"}]]
    assert after["attributes"]["adjourn.turn_id"] == before["attributes"]["adjourn.turn_id"]
    assert after["trace"] != before["trace"]
    assert "ann" not in json.dumps(decided["spans"])


async def test_a_leg_that_is_taken_over_is_linked_to_the_one_whose_driver_is_gone(traced: Traced) -> None:
    store = MemoryStore()
    started = asyncio.Event()

    async def hang(_: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    tracing = Tracing(traced.provider)
    first = Adjourn(observers=[tracing], model=ScriptedModel([call("work", {}), hang]))
    second = Adjourn(
        observers=[tracing], model=ScriptedModel(["done"]), clock=FakeClock(first.clock.now() + 3600)
    )  # when the lease of the first has ended
    for ai in (first, second):

        @ai.tool(name="work")
        async def _() -> str:
            return "ok"

        ai.define_agent("a", store=store)
    turn = first.agents["a"].connect().send("go")
    await started.wait()
    [taken] = await second.recover()
    assert (await taken.output).text == "done"
    turn.abort()
    with pytest.raises(SessionConflict):
        await turn.output
    after, before = traced.named("invoke_agent")  # in the order of their ends
    assert linked(after) == [ids(before)]
    assert [dict(n.attributes or {}) for n in after.links] == [{"adjourn.link": "takes over"}]
    assert [e.name for e in after.events][:1] == ["adjourn.takeover"]
    assert attributes(before)["adjourn.outcome"] == "lost"


async def test_the_span_of_the_caller_is_the_parent_and_a_nested_agent_is_in_its_tool(traced: Traced) -> None:
    ai = Adjourn(observers=[Tracing(traced.provider)])
    inner = ai.define_agent("inner", model=ScriptedModel(["inside"]), tools=[])
    outer = ai.define_agent(
        "outer", model=ScriptedModel([call("inner", {"task": "x"}), "outside"]), tools=[inner.as_tool()]
    )
    tracer = traced.provider.get_tracer("app")
    with tracer.start_as_current_span("request"):
        await outer.connect().send("go").output
    [request] = traced.named("request")
    [outside] = traced.named("invoke_agent outer")
    [inside] = traced.named("invoke_agent inner")
    [tool] = traced.named("execute_tool inner")
    assert parent(outside) == ids(request)[1]
    assert parent(inside) == ids(tool)[1]
    assert len({ids(s)[0] for s in traced.spans}) == 1


async def test_a_users_own_span_in_a_tool_is_within_the_tools(traced: Traced) -> None:
    ai = Adjourn(
        observers=[Tracing(traced.provider)], model=ScriptedModel([call("work", {}), call("thread", {}), "done"])
    )
    tracer = traced.provider.get_tracer("app")

    @ai.tool()
    async def work() -> str:
        with tracer.start_as_current_span("own async"):
            return "ok"

    @ai.tool()
    def thread() -> str:
        with tracer.start_as_current_span("own thread"):
            return "ok"

    await ai.define_agent("a").connect().send("go").output
    for own, around in (("own async", "execute_tool work"), ("own thread", "execute_tool thread")):
        [inside], [outside] = traced.named(own), traced.named(around)
        assert parent(inside) == ids(outside)[1]


async def test_errors_have_a_type_and_no_text(traced: Traced) -> None:
    failing = ScriptedModel([call("boom", {}), RuntimeError(f"no {CANARY}")])
    ai = Adjourn(observers=[Tracing(traced.provider)], model=failing)

    @ai.tool(on_error="model")
    async def boom() -> str:
        raise KeyError(CANARY)

    with pytest.raises(Exception, match=CANARY):
        await ai.define_agent("a").connect().send("go").output
    types = {s.name: attributes(s).get("error.type") for s in traced.spans if s.status.status_code is StatusCode.ERROR}
    assert types == {"execute_tool boom": "KeyError", "chat scripted": "RuntimeError", "invoke_agent a": "ModelError"}
    assert CANARY not in everything(traced)


def everything(traced: Traced) -> str:
    return "".join([s.to_json() or "" for s in traced.spans])


async def test_content_is_left_out_unless_it_is_asked_for(traced: Traced) -> None:
    ai, agent = pay_app([Tracing(traced.provider)], EVENTS)
    await eventful(ai, agent)
    assert len(traced.spans) > 10
    assert CANARY not in everything(traced)


async def test_content_that_is_asked_for_is_laid_out_as_the_conventions_have_it(traced: Traced) -> None:
    ai, agent = pay_app([Tracing(traced.provider, capture_content=True)], EVENTS)
    await eventful(ai, agent)
    chat = attributes(traced.named("chat")[-1])
    assert json.loads(chat["gen_ai.system_instructions"]) == [{"type": "text", "content": f"system {CANARY}"}]
    sent = json.loads(chat["gen_ai.input.messages"])
    assert sent[0] == {"role": "user", "parts": [{"type": "text", "content": f"please {CANARY}"}]}
    assert [m["role"] for m in sent[:3]] == ["user", "assistant", "tool"]
    asked, answered = sent[1]["parts"][0], sent[2]["parts"][0]
    assert (asked["type"], asked["name"], asked["arguments"]) == ("tool_call", "flaky", {"note": CANARY})
    assert (answered["type"], answered["id"], answered["response"]) == ("tool_call_response", asked["id"], CANARY)
    assert json.loads(chat["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": f"done {CANARY}"}], "finish_reason": "stop"}
    ]
    tool = attributes(traced.named("execute_tool pay")[-1])
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"amount": 3, "note": CANARY}
    assert json.loads(tool["gen_ai.tool.call.result"]) == {"paid": 3, "note": CANARY}
    failed = traced.named("execute_tool broken")[0]
    assert any(CANARY in str(dict(e.attributes or {})) for e in failed.events)


async def test_media_are_named_and_not_copied(traced: Traced) -> None:
    picture = Part(media=Media("data:image/png;base64,AAAA", "image/png"))
    linked_one = Part(media=Media("https://example.org/x.png", "image/png"))
    ai = Adjourn(observers=[Tracing(traced.provider, capture_content=True)], model=ScriptedModel(["nice"]))
    await ai.generate([Part(text="look"), picture, linked_one])
    [parts] = [m["parts"] for m in json.loads(attributes(traced.named("chat")[0])["gen_ai.input.messages"])]
    assert parts[1:] == [
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": ""},
        {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://example.org/x.png"},
    ]


async def test_the_providers_have_the_names_of_the_conventions_and_numbers_of_the_config_are_shown(
    traced: Traced,
) -> None:
    ai = Adjourn(observers=[Tracing(traced.provider)])
    for name in ("googleai/g", "openai/o", "anthropic/c", "local/l"):
        config = {"temperature": 0.5, "max_output_tokens": 9, "stop": [CANARY]}
        await ai.generate("go", model=ScriptedModel(["1"], name=name), config=config, output=int)
    shown = [(s.name, attributes(s)["gen_ai.provider.name"], s.kind) for s in traced.named("chat")]
    assert shown == [
        ("chat g", "gcp.gemini", SpanKind.CLIENT),
        ("chat o", "openai", SpanKind.CLIENT),
        ("chat c", "anthropic", SpanKind.CLIENT),
        ("chat l", "local", SpanKind.INTERNAL),
    ]
    chat = attributes(traced.named("chat")[0])
    assert (chat["gen_ai.request.temperature"], chat["gen_ai.request.max_tokens"]) == (0.5, 9)
    assert chat["gen_ai.output.type"] == "json"
    assert CANARY not in everything(traced)


async def test_what_is_not_sampled_is_not_kept_to_be_linked_to() -> None:
    off = Traced(sampler=ALWAYS_OFF)
    store = MemoryStore()
    _, agent = pay_app([Tracing(off.provider)], [pay()], store)
    await agent.connect().send("go").output
    off.provider.shutdown()
    assert off.spans == ()
    assert [r.trace for r in store.interrupt_rows.values()] == [None]


async def test_a_traceparent_is_kept_with_the_snapshot_and_the_pause(traced: Traced) -> None:
    store = MemoryStore()
    _, agent = pay_app([Tracing(traced.provider)], [pay()], store)
    await agent.connect().send("go").output
    [turn] = traced.named("invoke_agent")
    [snapshot], [row] = store.snapshot_rows.values(), store.interrupt_rows.values()
    assert snapshot.trace is not None
    assert snapshot.trace == row.trace
    assert snapshot.trace.startswith(f"00-{ids(turn)[0]:032x}-{ids(turn)[1]:016x}-0")


@pytest.mark.parametrize("damaged", ["", "00-zz-1-01", "01-" + "a" * 32 + "-" + "b" * 16 + "-01", "x" * 999])
async def test_a_damaged_traceparent_is_no_link(traced: Traced, damaged: str) -> None:
    facts = {"verb": "respond", "by_kind": "person", "outcome": "accepted"}
    tell([Tracing(traced.provider)], Observed("decision", "pay", facts, links=[damaged]))
    [span] = traced.spans
    assert span.links == ()


async def test_without_a_provider_it_uses_the_global_one_and_costs_no_answer() -> None:
    seen = Recorder()
    _, agent = pay_app([Tracing(), seen], [pay(), "done"])
    session = agent.connect()
    await session.send("go").output
    assert (await session.interrupts[0].restart().output).text == "done"
    assert all(s.trace is None for s in seen.of("turn"))
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_step_that_an_engine_runs_elsewhere_is_within_the_turns_span(traced: Traced) -> None:
    tracing = Tracing(traced.provider)
    turn = Observed("turn", "clerk", {"agent": "clerk", "turn_id": "t"})
    with Watched([tracing], turn):
        pass
    assert turn.trace is not None
    with Watched([tracing], Observed("tool", "pay", {"call_id": "c"}, parent=turn.trace)):  # in another process
        pass
    [outside], [inside] = traced.named("invoke_agent"), traced.named("execute_tool")
    assert parent(inside) == ids(outside)[1]
    assert ids(inside)[0] == ids(outside)[0]


async def test_a_worker_tells_where_it_is_and_names_the_span_of_the_turn() -> None:
    seen = Recorder()
    leg = Leg("s", "n2", "n1", "clerk", "w", 0.0, trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    model = ScriptedModel([call("look", {})])
    setting = Setting(model, {"look": tool(lambda: "seen", name="look")}, observers=[seen], leg=leg)
    turn = record(begin((), Limits()), UserSaid(Message("user", [Part(text="go")])))
    driver = Driver(turn, setting)
    for _ in range(2):  # as an engine asks for one step at a time
        step = next_step(driver.turn)
        assert isinstance(step, (CallModel, RunTools))
        await driver.one_step(step)
    for kind in ("model", "tool"):
        [step] = seen.of(kind)
        assert (step.facts["session_id"], step.facts["turn_id"], step.parent) == ("s", "n1", leg.trace)

"""`generate_stream` is `generate`, watched."""

import asyncio
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    Chunk,
    Interrupt,
    InvalidRequest,
    LimitReached,
    Limits,
    ModelError,
    Part,
    ToolFailed,
    ToolRunContext,
)
from adjourn.errors import AdjournError
from adjourn.model import ModelRequest
from adjourn.testing import ScriptedModel, call


async def drain(handle: Any) -> list[Any]:
    return [chunk async for chunk in handle.stream]


def pauses(chunks: list[Any]) -> list[Any]:
    return [c for c in chunks if c.tool_request is not None]


class Gate:
    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.ai = Adjourn(model=model)

        @self.ai.tool()
        async def gate(n: int, ctx: ToolRunContext) -> int:
            if not ctx.is_resumed():
                raise Interrupt({"n": n})
            return n

        @self.ai.tool()
        async def free(n: int) -> int:
            return n

        self.tools = [gate, free]

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        return self.ai.generate_stream(*args, tools=self.tools, **kwargs)


async def test_text_arrives_in_chunks_and_adds_up() -> None:
    handle = Adjourn(model=ScriptedModel(["Hello, Bob"], chunks=[["Hel", "lo, ", "Bob"]])).generate_stream("hi")
    chunks = await drain(handle)
    texts = [c.text for c in chunks if c.text]
    assert texts == ["Hel", "lo, ", "Bob"]
    assert [c.accumulated_text for c in chunks if c.text] == ["Hel", "Hello, ", "Hello, Bob"]
    response = await handle.response
    assert response.text == "Hello, Bob"
    assert all(c.raw.role == "model" for c in chunks if c.text)


async def test_the_handle_itself_can_be_awaited_and_read() -> None:
    handle = Adjourn(model=ScriptedModel(["Hello"], chunks=[["Hello"]])).generate_stream("hi")
    assert [c.text async for c in handle] == ["Hello"]
    assert (await handle).text == "Hello"


async def test_reasoning_is_told_apart_from_text() -> None:
    chunks = [[Chunk(content=[Part(reasoning="hmm")]), "yes"]]
    handle = Adjourn(model=ScriptedModel([[Part(reasoning="hmm"), "yes"]], chunks=chunks)).generate_stream("hi")
    seen = await drain(handle)
    assert [(c.reasoning, c.text) for c in seen] == [("hmm", ""), ("", "yes")]


async def test_text_comes_first_then_each_of_two_parallel_pauses_exactly_once() -> None:
    requests = ["One moment.", call("gate", {"n": 1}, ref="a"), call("gate", {"n": 2}, ref="b")]
    gate = Gate(ScriptedModel([requests, "done"], chunks=[["One ", "moment."]]))
    handle = gate.stream("go")
    chunks = await drain(handle)
    assert [c.text for c in chunks[:2]] == ["One ", "moment."]
    assert sorted(c.tool_request.ref for c in pauses(chunks)) == ["a", "b"]
    assert len(chunks) == 4
    response = await handle.response
    assert response.finish_reason == "interrupted"
    assert {c.interrupt.id for c in pauses(chunks)} == {p.id for p in response.interrupts}


async def test_the_interrupt_is_set_before_its_chunk_is_delivered() -> None:
    gate = Gate(ScriptedModel([[call("gate", {"n": 1}), call("gate", {"n": 2})]]))
    handle = gate.stream("go")
    seen = 0
    async for chunk in handle.stream:
        if chunk.tool_request is not None:
            seen += 1
            assert chunk.interrupt in handle.interrupts
            assert chunk.interrupt.payload == {"n": chunk.tool_request.input["n"]}
    assert seen == 2


async def test_the_chunk_of_a_pause_carries_the_request_with_its_interrupt_as_a_raw_chunk() -> None:
    gate = Gate(ScriptedModel([call("gate", {"n": 1}, ref="a")]))
    [chunk] = await drain(gate.stream("go"))
    assert chunk.raw.role == "tool"
    [part] = chunk.raw.content
    assert part.tool_request.name == "gate"
    assert part.metadata["interrupt"] == {"n": 1}


async def test_half_made_requests_that_a_model_streams_are_not_shown_as_pauses() -> None:
    partial = Chunk(content=[Part(text="calling"), call("gate", {"n": 1}, ref="a")])
    gate = Gate(ScriptedModel([[call("gate", {"n": 1}, ref="a")]], chunks=[[partial, partial]]))
    chunks = await drain(gate.stream("go"))
    assert len(pauses(chunks)) == 1


async def test_the_results_of_tools_come_as_one_chunk_in_request_order_between_the_texts() -> None:
    replies = [["a", call("free", {"n": 1}, ref="r1"), call("free", {"n": 2}, ref="r2")], "b"]
    gate = Gate(ScriptedModel(replies, chunks=[["a"], ["b"]]))
    chunks = await drain(gate.stream("go"))
    assert [c.raw.role for c in chunks] == ["model", "tool", "model"]
    assert [p.tool_response.output for p in chunks[1].raw.content] == [1, 2]
    assert chunks[1].tool_response.ref == "r1"
    indexes = [c.raw.index for c in chunks]
    assert indexes == sorted(set(indexes))


async def test_a_resumed_stream_shows_the_results_and_the_new_text_and_nothing_again() -> None:
    gate = Gate(
        ScriptedModel(
            [["first", call("gate", {"n": 1}), call("free", {"n": 2})], "second"], chunks=[["first"], ["second"]]
        )
    )
    first = gate.stream("go")
    paused = await first.response
    await drain(first)
    chunks = await drain(gate.stream(messages=paused.messages, resume_restart=paused.interrupts[0].restart()))
    assert [c.raw.role for c in chunks] == ["tool", "model"]
    assert [p.tool_response.output for p in chunks[0].raw.content] == [1, 2]
    assert chunks[1].text == "second"
    assert pauses(chunks) == []


async def test_what_stays_paused_after_a_partial_answer_is_not_announced_again() -> None:
    gate = Gate(ScriptedModel([[call("gate", {"n": 1}), call("gate", {"n": 2})], "done"]))
    paused = await gate.stream("go").response
    handle = gate.stream(messages=paused.messages, resume_restart=paused.interrupts[0].restart())
    assert pauses(await drain(handle)) == []
    assert len((await handle.response).interrupts) == 1


async def test_a_call_that_pauses_again_after_a_restart_is_announced_as_a_new_pause() -> None:
    ai = Adjourn(model=ScriptedModel([call("again")]))

    @ai.tool()
    async def again(ctx: ToolRunContext) -> None:
        raise Interrupt({"try": len(ctx.restarts)})

    paused = await ai.generate_stream("go", tools=[again]).response
    chunks = await drain(ai.generate_stream(resume_restart=paused.interrupts[0].restart(), tools=[again]))
    assert [c.interrupt.payload for c in pauses(chunks)] == [{"try": 1}]


async def test_a_stream_that_nobody_reads_does_not_slow_the_turn_and_can_be_read_afterwards() -> None:
    many = [str(i) for i in range(5000)]
    handle = Adjourn(model=ScriptedModel(["".join(many)], chunks=[many])).generate_stream("go")
    response = await handle.response
    assert response.finish_reason == "stop"
    assert [c.text for c in await drain(handle)] == many


async def test_a_slow_reader_does_not_slow_the_turn() -> None:
    release = asyncio.Event()
    handle = Adjourn(model=ScriptedModel(["abc"], chunks=[["a", "b", "c"]])).generate_stream("go")
    read: list[str] = []

    async def reader() -> None:
        async for chunk in handle.stream:
            read.append(chunk.text)
            await release.wait()

    task = asyncio.create_task(reader())
    response = await handle.response
    assert response.text == "abc"
    assert len(read) < 3
    release.set()
    await task
    assert read == ["a", "b", "c"]


async def test_chunks_are_delivered_while_the_model_is_still_talking() -> None:
    go_on = asyncio.Event()
    ai = Adjourn()

    async def talk(request: ModelRequest, emit: Any) -> str:
        emit(Chunk(content=[Part(text="first")]))
        await go_on.wait()
        emit(Chunk(content=[Part(text="second")]))
        return "firstsecond"

    ai.define_model("talker", talk)
    handle = ai.generate_stream("go", model="talker")
    texts: list[str] = []
    async for chunk in handle.stream:
        texts.append(chunk.text)
        go_on.set()
    assert texts == ["first", "second"]


async def test_a_reader_that_stops_early_does_not_stop_the_turn() -> None:
    handle = Adjourn(model=ScriptedModel(["abc"], chunks=[["a", "b", "c"]])).generate_stream("go")
    async for _ in handle.stream:
        break
    assert (await handle.response).text == "abc"


async def test_each_reader_gets_the_whole_stream() -> None:
    handle = Adjourn(model=ScriptedModel(["ab"], chunks=[["a", "b"]])).generate_stream("go")
    one, two = await asyncio.gather(drain(handle), drain(handle))
    assert [c.text for c in one] == [c.text for c in two] == ["a", "b"]


async def test_cancelling_who_waits_for_the_response_does_not_cancel_the_turn() -> None:
    go_on, waiting = asyncio.Event(), asyncio.Event()

    async def talk(_: ModelRequest) -> str:
        waiting.set()
        await go_on.wait()
        return "done"

    handle = Adjourn(model=ScriptedModel([talk])).generate_stream("go")

    async def wait() -> Any:
        return await handle.response

    waiter = asyncio.create_task(wait())
    await waiting.wait()
    waiter.cancel()
    await asyncio.wait([waiter])
    go_on.set()
    assert (await handle.response).text == "done"


async def test_progress_of_a_tool_is_streamed_while_it_runs() -> None:
    ai = Adjourn(model=ScriptedModel([call("t"), "done"]))

    @ai.tool()
    async def t(ctx: ToolRunContext) -> str:
        ctx.report_progress(0.5, "half")
        ctx.report_progress(None, "nearly")
        return "ok"

    chunks = await drain(ai.generate_stream("go", tools=[t]))
    progress = [c.progress for c in chunks if c.progress is not None]
    assert [(p.tool, p.fraction, p.text) for p in progress] == [("t", 0.5, "half"), ("t", None, "nearly")]


async def test_progress_that_nobody_watches_is_no_trouble() -> None:
    ai = Adjourn(model=ScriptedModel([call("t"), "done"]))

    @ai.tool()
    def t(ctx: ToolRunContext) -> None:
        ctx.report_progress(1.0)

    assert (await ai.generate("go", tools=[t])).text == "done"


async def test_a_sync_tool_reports_progress_from_its_thread() -> None:
    ai = Adjourn(model=ScriptedModel([call("t"), "done"]))

    @ai.tool()
    def t(ctx: ToolRunContext) -> str:
        ctx.report_progress(0.25, "from a thread")
        return "ok"

    chunks = await drain(ai.generate_stream("go", tools=[t]))
    assert [c.progress.text for c in chunks if c.progress is not None] == ["from a thread"]


@pytest.mark.parametrize(
    "replies, error",
    [
        ([ConnectionError("down")], ModelError),
        ([call("bad")], ToolFailed),
        ([call("nope")] * 9, LimitReached),
    ],
)
async def test_a_failure_ends_the_stream_and_is_raised_by_the_response(
    replies: list[Any], error: type[AdjournError]
) -> None:
    ai = Adjourn(model=ScriptedModel(replies))

    @ai.tool()
    async def bad() -> None:
        raise ValueError("no")

    handle = ai.generate_stream("go", tools=[bad], limits=Limits(argument_errors=1))
    await drain(handle)
    with pytest.raises(error):
        await handle.response


async def test_a_failure_that_nobody_asks_for_is_no_unhandled_exception() -> None:
    handle = Adjourn(model=ScriptedModel([ConnectionError("down")])).generate_stream("go")
    await drain(handle)
    del handle


async def test_a_refused_resume_is_an_error_of_the_stream_too() -> None:
    gate = Gate(ScriptedModel([call("gate", {"n": 1}), "done"]))
    paused = await gate.stream("go").response
    with pytest.raises(InvalidRequest):
        await gate.stream(messages=paused.messages, resume_respond=[]).response
    assert (await gate.stream(resume_respond=paused.interrupts[0].respond(1)).response).text == "done"


async def test_the_stream_and_the_plain_call_make_the_same_transcript() -> None:
    def model() -> ScriptedModel:
        return ScriptedModel([["a", call("free", {"n": 1}, ref="r1")], "b"], chunks=[["a"], ["b"]])

    streamed = await Gate(model()).stream("go").response
    gate = Gate(model())
    plain = await gate.ai.generate("go", tools=gate.tools)
    assert streamed.messages == plain.messages


async def test_the_model_is_told_whether_somebody_listens() -> None:
    model = ScriptedModel(["a", "b"])
    ai = Adjourn(model=model)
    await ai.generate("x")
    await ai.generate_stream("x").response
    assert [r.streaming for r in model.requests] == [False, True]


async def test_a_function_may_emit_texts_and_parts_as_it_may_return_them() -> None:
    ai = Adjourn()

    @ai.model
    def talker(request: ModelRequest, emit: Any) -> str:
        emit("one ")
        emit([Part(reasoning="hm"), "two"])
        emit(Chunk(content=[Part(text=" three")]))
        return "one two three"

    handle = ai.generate_stream("go", model=talker)
    assert [c.text for c in await drain(handle)] == ["one ", "two", " three"]
    assert (await handle.response).text == "one two three"


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_a_function_emits_and_is_no_chunk_is_refused_by_name(streamed: bool) -> None:
    ai = Adjourn()

    @ai.model
    def talker(request: ModelRequest, emit: Any) -> str:
        emit(7)
        return "never"

    generate: Any = (lambda: ai.generate_stream("go", model=talker).response) if streamed else ai.generate
    with pytest.raises(AdjournError, match="not 7"):
        await (generate() if streamed else generate("go", model=talker))

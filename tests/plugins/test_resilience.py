import asyncio

import pytest

from adjourn import AbortSignal, Adjourn, Backoff, Interrupt, ToolRunContext, respond_to_interrupt, tool
from adjourn.errors import DefinitionError, ModelError
from adjourn.model import Emit, FunctionModel, Model, ModelReply, ModelRequest, as_reply
from adjourn.parts import OURS, Chunk, Message, Part
from adjourn.resilience import MARK, configured_model, fallback_model, half_a_second_doubled, retry_model
from adjourn.testing import FakeClock, ScriptedModel, call

BUSY = ModelError("busy", provider="x", code=529, retryable=True)
WRONG = ModelError("wrong", provider="x", code=400)
WATCHED = ModelRequest([Message("user", [Part(text="Go.")])], streaming=True)
UNWATCHED = ModelRequest([Message("user", [Part(text="Go.")])])


async def run(model: Model, request: ModelRequest = UNWATCHED) -> tuple[ModelReply, list[Chunk]]:
    chunks: list[Chunk] = []
    return await model(request, chunks.append), chunks


async def test_a_passing_failure_is_tried_again_and_a_wrong_request_is_not() -> None:
    clock = FakeClock()
    model = ScriptedModel([BUSY, BUSY, "ok"])
    reply, _ = await run(retry_model(model, backoff=Backoff(1.0, jitter=False), clock=clock))
    assert reply.message.text == "ok"
    assert clock.slept == [1.0, 2.0]

    model = ScriptedModel([WRONG, "never"])
    with pytest.raises(ModelError, match="wrong"):
        await run(retry_model(model, clock=clock))
    assert model.calls == 1


async def test_the_attempts_are_bounded_and_the_last_error_is_raised_as_it_was() -> None:
    last = ModelError("still busy", retryable=True)
    model = ScriptedModel([BUSY, last, "never"])
    clock = FakeClock()
    with pytest.raises(ModelError) as caught:
        await run(retry_model(model, attempts=2, backoff=0.5, clock=clock))
    assert caught.value is last
    assert clock.slept == [0.5]
    with pytest.raises(DefinitionError):
        retry_model(model, attempts=0)


async def test_what_the_provider_asks_for_is_a_floor() -> None:
    clock = FakeClock()
    errors = [ModelError("busy", retryable=True, retry_after=s) for s in (9.0, 0.1)]
    await run(retry_model(ScriptedModel([*errors, "ok"]), backoff=2.0, clock=clock))
    assert clock.slept == [9.0, 2.0]


async def test_no_attempt_begins_past_the_budget_and_none_is_waited_for_that_would() -> None:
    clock = FakeClock()
    asks_for_long = ModelError("busy", retryable=True, retry_after=100.0)
    model = ScriptedModel([asks_for_long, "never"])
    with pytest.raises(ModelError):
        await run(retry_model(model, budget=30.0, clock=clock))
    assert clock.slept == []

    model = ScriptedModel([BUSY], repeat_last=True)
    with pytest.raises(ModelError):
        await run(retry_model(model, attempts=99, backoff=4.0, budget=10.0, clock=clock))
    assert clock.slept == [4.0, 4.0]

    slow = ScriptedModel([BUSY] * 4 + ["ok"])
    await run(retry_model(slow, attempts=9, backoff=4.0, budget=None, clock=clock))


async def test_the_default_delays_grow_with_jitter_and_stay_bounded() -> None:
    assert all(0.25 <= half_a_second_doubled(1) <= 0.5 for _ in range(50))
    assert all(15.0 <= half_a_second_doubled(n) <= 30.0 for n in (7, 50, 10_000))
    assert len({half_a_second_doubled(3) for _ in range(10)}) > 1


async def test_other_exceptions_are_no_business_of_a_retry_unless_it_is_told() -> None:
    model = ScriptedModel([KeyError("bug"), "ok"])
    with pytest.raises(KeyError):
        await run(retry_model(model))
    model = ScriptedModel([KeyError("bug"), "ok"])
    reply, _ = await run(retry_model(model, when=lambda e: isinstance(e, KeyError), backoff=0.0, clock=FakeClock()))
    assert reply.message.text == "ok"


async def test_once_something_was_shown_an_attempt_is_the_last() -> None:
    first, second = [ScriptedModel([BUSY, "never"], chunks=[["Hel"]]) for _ in range(2)]
    for model in (retry_model(first, clock=FakeClock()), fallback_model(second, ScriptedModel(["never"]))):
        chunks: list[Chunk] = []
        with pytest.raises(ModelError, match="busy"):
            await model(WATCHED, chunks.append)
        assert [c.text for c in chunks] == ["Hel"]
    assert (first.calls, second.calls) == (1, 1)


async def test_where_nobody_watches_what_was_shown_does_not_matter() -> None:
    model = ScriptedModel([BUSY, "ok"], chunks=[["Hel"]])
    reply, _ = await run(retry_model(model, backoff=0.0, clock=FakeClock()), UNWATCHED)
    assert reply.message.text == "ok"


async def test_a_mark_says_that_the_reply_begins_anew() -> None:
    model = ScriptedModel([BUSY, "Hello"], chunks=[["Hel"], ["Hello"]])
    reply, chunks = await run(retry_model(model, after_chunks="mark", backoff=0.0, clock=FakeClock()), WATCHED)
    assert [(c.text, c.metadata) for c in chunks] == [("Hel", None), ("", MARK), ("Hello", None)]
    assert MARK == {OURS: {"discard": True}}
    assert reply.message.text == "Hello"

    model = ScriptedModel([BUSY, BUSY], chunks=[["Hel"], ["Hel"]])
    seen: list[Chunk] = []
    marking = retry_model(model, attempts=2, after_chunks="mark", backoff=0.0, clock=FakeClock())
    with pytest.raises(ModelError):
        await marking(WATCHED, seen.append)
    assert [bool(c.metadata) for c in seen] == [False, True, False]  # no mark where nothing follows
    with pytest.raises(DefinitionError):
        retry_model(model, after_chunks="maybe")  # pyright: ignore[reportArgumentType]


async def test_chunks_that_come_after_an_attempt_was_over_are_dropped() -> None:
    kept: list[Emit] = []

    class Leaky:
        name = "leaky"

        async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
            kept.append(emit)
            if len(kept) == 1:
                raise BUSY
            kept[0](Chunk(content=[Part(text="late")]))
            return as_reply("ok")

    _, chunks = await run(retry_model(Leaky(), backoff=0.0, clock=FakeClock()), WATCHED)
    assert chunks == []


async def test_a_fallback_takes_the_next_model_for_what_may_pass_and_for_what_is_not_there() -> None:
    gone = ModelError("no such model", code=404)
    first, second, third = ScriptedModel([BUSY, gone, WRONG]), ScriptedModel([BUSY, "b"]), ScriptedModel(["c"])
    model = fallback_model(first, second, third)
    assert model.name == "scripted or scripted or scripted"
    assert (await run(model))[0].message.text == "c"
    assert (await run(model))[0].message.text == "b"
    with pytest.raises(ModelError, match="wrong"):
        await run(model)
    with pytest.raises(ModelError, match="wrong"):
        await run(fallback_model(ScriptedModel([BUSY]), ScriptedModel([WRONG])))
    with pytest.raises(DefinitionError):
        fallback_model(first)


async def test_a_config_made_for_one_provider_does_not_reach_another() -> None:
    class Mine:
        pass

    def models() -> list[ScriptedModel]:
        return [ScriptedModel([BUSY], name="a/1"), ScriptedModel([BUSY], name="b/1"), ScriptedModel(["ok"], name="a/2")]

    mine, plain = Mine(), {"temperature": 1}
    for config, expected in ((mine, [mine, None, mine]), (plain, [plain] * 3), (None, [None] * 3)):
        first, second, third = models()
        await run(fallback_model(first, second, third), ModelRequest(UNWATCHED.messages, config=config))
        assert [m.requests[0].config for m in (first, second, third)] == expected
    first, second, _ = models()
    await run(fallback_model(first, configured_model(ScriptedModel(["ok"], name="b/1"), 5)))
    other = ScriptedModel(["ok"])
    await run(configured_model(other, plain))
    assert other.requests[0].config == plain


async def test_a_turn_that_falls_back_and_pauses_in_between_keeps_a_valid_history() -> None:
    @tool
    async def ask(ctx: ToolRunContext) -> str:
        raise Interrupt("sure?")

    signed = Part(reasoning="hm", metadata={"anthropic": {"type": "thinking", "signature": "c2ln"}})
    first = ScriptedModel([[signed, call("ask", ref="toolu_1")], BUSY])
    second = ScriptedModel(["done"])
    model = fallback_model(retry_model(first, attempts=1), second)
    ai = Adjourn(model=model)
    paused = await ai.generate("Go.", tools=[ask])
    done = await ai.generate(tools=[ask], resume_respond=respond_to_interrupt("yes", interrupt=paused.interrupts[0]))
    assert done.text == "done"
    user, model_message, results = second.requests[0].messages
    assert user.role == "user"
    assert model_message.content[0].metadata == signed.metadata
    assert results.content[0].tool_response is not None
    assert results.content[0].tool_response.ref == "toolu_1"


class Stopped(FakeClock):
    """A clock that never goes on: whoever sleeps waits for ever, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await asyncio.Event().wait()


async def test_an_abort_ends_the_waiting_and_no_attempt_follows() -> None:
    model, clock, signal = ScriptedModel([BUSY], repeat_last=True), Stopped(), AbortSignal()
    ai = Adjourn(model=retry_model(model, attempts=9, when=lambda e: True, clock=clock))
    turn = asyncio.ensure_future(ai.generate("Go.", abort_signal=signal))
    await clock.asleep.wait()
    signal.abort("enough")
    assert (await turn).finish_reason == "aborted"
    assert len(model.requests) == 1


async def test_a_cancelled_call_is_no_failure_that_another_model_makes_good() -> None:
    begun = asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    second = ScriptedModel(["done"])
    first = retry_model(FunctionModel(hang), attempts=3, backoff=0, when=lambda e: True)
    waiting = asyncio.ensure_future(run(fallback_model(first, second, when=lambda e: True)))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert second.requests == []


async def test_a_deadline_of_the_caller_ends_the_waiting() -> None:
    model, clock = ScriptedModel([BUSY], repeat_last=True), Stopped()

    async def with_a_deadline() -> None:
        async with asyncio.timeout(None) as deadline:
            waiting = asyncio.ensure_future(clock.asleep.wait())
            waiting.add_done_callback(lambda _: deadline.reschedule(0))
            await run(retry_model(model, attempts=9, clock=clock))

    with pytest.raises(TimeoutError):
        await with_a_deadline()
    assert len(model.requests) == 1


async def test_calls_at_once_count_their_failures_apart() -> None:
    left = {"a": 2, "b": 0, "c": 1, "d": 3}
    seen: list[str] = []

    async def reply(request: ModelRequest) -> str:
        text = request.messages[-1].content[0].text or ""
        seen.append(text)
        await asyncio.sleep(0)
        if left[text]:
            left[text] -= 1
            raise BUSY
        return text

    def asking(text: str) -> ModelRequest:
        return ModelRequest([Message("user", [Part(text=text)])])

    model = retry_model(FunctionModel(reply), attempts=3, backoff=0)
    done = await asyncio.gather(*[run(model, asking(t)) for t in left], return_exceptions=True)
    assert [d if isinstance(d, BaseException) else d[0].message.text for d in done] == ["a", "b", "c", BUSY]
    assert sorted(seen) == sorted("aaabccddd")

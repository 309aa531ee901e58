"""`check_model`: what every model must do, as a suite that a plugin's own tests run.

It asks the model some forty small questions. Any answer will do, so it works for a scripted model, for a plugin in front of
a local server that replays recordings, and for the real thing. What it looks at is the form: see `Checked.passed`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from adjourn.errors import AdjournError, ModelError
from adjourn.model import Model, ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import OURS, Chunk, Message, Part, ToolRequest, ToolResponse, Usage, decode, encode, wire

__all__ = ["Checked", "check_model"]

Make: TypeAlias = Model | Callable[[], Model | Awaitable[Model]]
Expect: TypeAlias = Callable[[ModelRequest, ModelReply], None]

_REASONS = ("stop", "length", "blocked", "other")

WEATHER = ToolDefinition(
    "get_weather",
    "The weather in a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


@dataclass
class Checked:
    """What `check_model` found: the names of the checks that passed, and of those left out, with the reason."""

    passed: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])


async def check_model(
    make: Make,
    *,
    prompts: Sequence[str] = ("Say hello.", "Say goodbye.", "Say nothing much."),
    tools: bool = True,
    config: Any = None,
    failing: Make | None = None,
    expect: Expect | None = None,
    patience: float = 60.0,
) -> Checked:
    """Runs the suite. Raises AssertionError, naming the check, for what does not hold.

    `make` is the model, or a function that makes one (a fresh one for each check). `prompts` are what it is asked; they
    differ, so that replies to concurrent calls can be told apart. `tools=False` leaves out all that needs tools.
    `failing` is a model (or maker of one) whose calls fail: a wrong key, an address where nobody listens. `expect` is
    called with each request and its reply, to check more. `patience` is how many seconds any call may take.
    """
    suite = _Suite(make, list(prompts), config, expect, patience)
    suite.tools = tools
    done = Checked()
    checks: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("the reply is a message of the model", suite.replies),
        ("the chunks add up to the text of the reply", suite.streams),
        ("concurrent calls do not mix", suite.does_not_mix),
        ("a cancelled call leaves nothing behind", suite.cancels),
        ("what it is asked beforehand is what it takes", suite.checks),
    ]
    for name, messages in transcripts().items():
        if tools or not any(p.tool_request for m in messages for p in m.content):
            checks.append((f"it goes on after {name}", _after(suite, messages)))
        else:
            done.skipped[f"it goes on after {name}"] = "tools=False"
    if tools:
        checks.append(("tool calls are well formed", suite.calls_tools))
    else:
        done.skipped["tool calls are well formed"] = "tools=False"
    if failing is not None:
        checks.append(("errors are ModelErrors", _failure(suite, failing)))
    else:
        done.skipped["errors are ModelErrors"] = "no failing= model was given"
    for name, check in checks:
        try:
            async with asyncio.timeout(patience * len(suite.prompts)):
                await check()
        except TimeoutError:
            raise AssertionError(f"{name}: it took longer than patience={patience:g} allows") from None
        except ModelError as e:
            raise AssertionError(f"{name}: the call failed: {e}") from e
        except AssertionError as e:
            raise AssertionError(f"{name}: {e}") from e
        done.passed.append(name)
    return done


def _after(suite: "_Suite", messages: Sequence[Message]) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        for streaming in (False, True):
            await suite.ask(ModelRequest(messages, (WEATHER,), suite.config, streaming=streaming))

    return check


def _failure(suite: "_Suite", failing: Make) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        for streaming in (False, True):
            model = await _made(failing)
            request = suite.request(suite.prompts[0], streaming)
            error: ModelError | None = None
            try:
                await _call(model, request, [])
            except ModelError as e:
                error = e
            assert error is not None, "the failing model replied"
            assert str(error), "the ModelError has no text"
            assert error.retry_after is None or error.retry_after >= 0, f"retry_after is {error.retry_after}"

    return check


async def _made(make: Make) -> Model:
    # A model is callable, too, but takes a request; a maker takes nothing. A class has the name, but is a maker.
    if inspect.isclass(make) or not isinstance(make, Model):
        maker = cast(Callable[[], Any], make)
        assert callable(maker), f"{make!r} is neither a model nor a function that makes one"
        try:
            inspect.signature(maker).bind()
        except TypeError as e:
            kind = "is made with arguments" if inspect.isclass(make) else "is no model (it has no `name`)"
            raise AssertionError(f"{make!r} {kind}; give a model, or a function of no arguments ({e})") from None
        made = maker()
        made = await made if inspect.isawaitable(made) else made
    else:
        made = make
    model = cast(Model, made)
    name: Any = getattr(model, "name", None)
    assert name, f"the model has no name: {model!r}"
    assert isinstance(name, str), f"the name of the model is no text: {name!r}"
    assert callable(model), f"the model {model!r} cannot be called"
    return model


class _Suite:
    def __init__(self, make: Make, prompts: list[str], config: Any, expect: Expect | None, patience: float) -> None:
        assert prompts, "give at least one prompt"
        self._make = make
        self.prompts = prompts
        self.config = config
        self._expect = expect
        self._patience = patience
        self.tools = True

    def request(self, prompt: str, streaming: bool, tools: Sequence[ToolDefinition] = ()) -> ModelRequest:
        messages = [Message("system", [Part(text="Be brief.")]), Message("user", [Part(text=prompt)])]
        return ModelRequest(messages, tools, self.config, streaming=streaming)

    async def ask(self, request: ModelRequest, model: Model | None = None) -> ModelReply:
        """One call, with all that holds for any call checked."""
        model = model or await _made(self._make)
        before = _frozen(request)
        chunks: list[Chunk] = []
        reply = await _call(model, request, chunks)
        assert _frozen(request) == before, "the request was changed"
        _check_reply(reply)
        late = len(chunks)
        await asyncio.sleep(0)
        assert len(chunks) == late, "a chunk came after the reply"
        _check_chunks(chunks, reply)
        if self._expect is not None:
            self._expect(request, reply)
        return reply

    async def replies(self) -> None:
        for prompt in self.prompts:
            await self.ask(self.request(prompt, streaming=False))

    async def streams(self) -> None:
        for prompt in self.prompts:
            await self.ask(self.request(prompt, streaming=True))

    async def does_not_mix(self) -> None:
        model = await _made(self._make)
        requests = [self.request(p, streaming=i % 2 == 0) for i, p in enumerate(self.prompts * 2)]
        await asyncio.gather(*[self.ask(r, model) for r in requests])

    async def checks(self) -> None:
        """Asks what an agent asks when it is defined, before there is a message; a model need not have an answer."""
        check = getattr(await _made(self._make), "check", None)
        if check is None:
            return
        assert callable(check), f"its `check` is {check!r}, where a method check(request) is looked for"
        request = ModelRequest((), (WEATHER,) if self.tools else (), self.config)
        before = _frozen(request)
        for _ in range(2):
            answer = check(request)
            assert answer is None, f"check() returned {answer!r}; it raises, or returns nothing"
        assert _frozen(request) == before, "the request was changed"

    async def calls_tools(self) -> None:
        for streaming in (False, True):
            request = self.request("What is the weather in Paris? Use the tool.", streaming, (WEATHER,))
            await self.ask(request)

    async def cancels(self) -> None:
        """Cancels calls at several moments: before they begin, as they begin, and a little later."""
        model = await _made(self._make)
        for pauses in (0, 1, 2, 5, 20):
            before = asyncio.all_tasks()
            chunks: list[Chunk] = []
            task = asyncio.ensure_future(_call(model, self.request(self.prompts[0], streaming=True), chunks))
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()  # a call that is done by then has its reply, which is as well
            cut = task.cancelling() > 0
            with suppress(asyncio.CancelledError):
                await task
            told = "it was cancelled and replied all the same; let asyncio.CancelledError through"
            assert task.cancelled() or not cut, told
            seen = len(chunks)
            left: set[asyncio.Task[Any]] = set()
            for _ in range(100):
                left = asyncio.all_tasks() - before - {task}
                if not left:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError(f"tasks are left over a second after it was cancelled: {left}")
            assert len(chunks) == seen, "a chunk came after the call was cancelled"
        await self.ask(self.request(self.prompts[0], streaming=True), model)


async def _call(model: Model, request: ModelRequest, chunks: list[Chunk]) -> ModelReply:
    """What the model returns. Raises ModelError, and AssertionError for anything else that it raises."""
    waiting: Any = None
    try:
        waiting = model(request, chunks.append)
        if inspect.isawaitable(waiting):
            return await waiting
    except (ModelError, AssertionError):
        raise
    except Exception as e:
        raise AssertionError(f"it raised {type(e).__name__}, not a ModelError: {e}") from e
    raise AssertionError(f"it returned a {type(waiting).__name__} that cannot be awaited; its call must be async")


def _frozen(request: ModelRequest) -> Any:
    config = request.config
    shown = wire(config) if isinstance(config, Mapping) else repr(config)
    return encode([wire(replace(request, config=None)), shown]), [id(m) for m in request.messages]


def _check_chunks(chunks: Sequence[Chunk], reply: ModelReply) -> None:
    for chunk in chunks:
        assert isinstance(chunk, Chunk), f"it emitted a {type(chunk).__name__}, not a Chunk: {chunk!r}"
        assert chunk.role == "model", f"a chunk has the role {chunk.role!r}"
        decode(encode(chunk), Chunk)
    for kind in ("text", "reasoning"):
        seen = "".join([getattr(c, kind) for c in chunks])
        whole = getattr(reply.message, kind)
        assert not seen or seen == whole, f"the chunks say {seen!r}, the {kind} of the reply is {whole!r}"


def _check_reply(reply: ModelReply) -> None:
    assert isinstance(reply, ModelReply), f"it returned a {type(reply).__name__}, not a ModelReply"
    message: Any = reply.message
    assert isinstance(message, Message), f"the message of the reply is a {type(message).__name__}, not a Message"
    assert message.role == "model", f"the reply has the role {message.role!r}"
    content: Any = message.content
    assert isinstance(content, (list, tuple)), f"the content of the reply is no list of parts: {content!r}"
    for part in cast(Sequence[Any], content):
        assert isinstance(part, Part), f"the content of the reply holds what is no Part: {part!r}"
    assert reply.finish_reason in _REASONS, f"the finish reason is {reply.finish_reason!r}; it takes one of {_REASONS}"
    try:
        stored = decode(encode(message), Message)
    except (TypeError, ValueError, RecursionError, AdjournError) as e:
        raise AssertionError(f"the message cannot be stored: {e}") from e
    assert stored == _listed(message), "the message changes when it is stored and read back"
    usage: Any = reply.usage
    assert isinstance(usage, Usage), f"the usage is a {type(usage).__name__}, not a Usage"
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
    assert min(counts) >= 0, f"a token count is negative: {usage}"
    assert usage.cached_tokens <= usage.input_tokens, f"cached tokens are a share of the input: {usage}"
    assert usage.reasoning_tokens <= usage.output_tokens, f"reasoning tokens are a share of the output: {usage}"
    kinds = ("text", "reasoning", "media", "data", "tool_request", "tool_response", "custom")
    refs: list[str] = []
    for part in message.content:
        set_ = [k for k in kinds if getattr(part, k) is not None]
        assert len(set_) == 1, f"a part must be of one kind, and this is {set_}: {part}"
        assert part.tool_response is None, "a model gives no tool responses"
        if part.tool_request is not None:
            _check_call(part, part.tool_request)
            if part.tool_request.ref is not None:
                refs.append(part.tool_request.ref)
    assert len(refs) == len(set(refs)), f"two calls have the same ref: {refs}"


def _check_call(part: Part, request: ToolRequest) -> None:
    assert request.name, f"a call has no name: {part}"
    assert request.ref != "", "a ref is empty; where the provider gives none it is None"
    malformed = part.ours.get("malformed")
    assert isinstance(request.input, Mapping) or (isinstance(request.input, str) and malformed), (
        f"the input of a call is neither an object nor a text marked as malformed: {request.input!r}"
    )


def _listed(message: Message) -> Message:
    return replace(message, content=list(message.content))


# -- conversations -----------------------------------------------------------------------------------------------------


def transcripts() -> dict[str, list[Message]]:
    """Conversations as the loop sends them, by what came last in them."""
    ask = [Message("system", [Part(text="Be brief.")]), Message("user", [Part(text="What is the weather?")])]
    one = [*ask, Message("model", [Part(text="I look."), _request("a", "Paris")])]
    two = [*ask, Message("model", [_request("a", "Paris"), _request("b", "Rome")])]

    def results(*parts: Part, resumed: bool = False) -> Message:
        return Message("tool", list(parts), {"resumed": True} if resumed else None)

    def noted(outcome: str) -> dict[str, Any]:
        return {OURS: {"outcome": outcome}}

    declined = {"declined": True, "reason": "The request was declined. Do not repeat it as it is."}
    cancelled = {"cancelled": True, "reason": "The turn was cancelled before this was done."}
    broken = Part(
        tool_request=ToolRequest("get_weather", "call_a", '{"city": "Par'), metadata={OURS: {"malformed": "cut off"}}
    )
    foreign = Part(reasoning="I think of Paris.", metadata={"elsewhere": {"signature": "c2lnbmVk"}})
    bare = Part(tool_request=ToolRequest("get_weather", "call|1.x", {"city": "Paris"}))
    again = [
        Message("model", [_request("a", "Rome")]),
        results(_response("a", {"sky": "grey"})),
    ]
    correction = Message("user", [Part(text="Your reply does not fit. Reply again.")], {OURS: {"correction": "output"}})
    return {
        "a result": [*one, results(_response("a", {"sky": "blue"}))],
        "parallel calls": [*two, results(_response("a", {"sky": "blue"}), _response("b", {"sky": "grey"}))],
        "falsy results": [*two, results(_response("a", None), _response("b", ""))],
        "a respond": [*one, results(_response("a", "blue", {"interruptResponse": True}), resumed=True)],
        "a restart": [
            *ask,
            Message("model", [_request("a", "Paris", {"resolvedInterrupt": True}), _request("b", "Rome")]),
            results(_response("a", "blue"), _response("b", "grey", {"source": "pending"}), resumed=True),
        ],
        "a decline": [*one, results(_response("a", declined, noted("declined")), resumed=True)],
        "a correction of arguments": [
            *ask,
            Message("model", [broken]),
            results(_response("a", {"error": "the arguments are not valid"}, noted("arguments"))),
        ],
        "a correction of the output": [*ask, Message("model", [Part(text="blue")]), correction],
        "an abort and a new message": [
            *one,
            results(_response("a", cancelled, noted("cancelled"))),
            Message("user", [Part(text="Never mind. Say hello.")]),
        ],
        "a result with content": [
            *one,
            results(Part(tool_response=ToolResponse("get_weather", "call_a", "see", [Part(text="a chart was made")]))),
        ],
        "rounds with the same refs": [*one, results(_response("a", "blue")), *again],
        "another provider": [
            *ask,
            Message("model", [foreign, bare]),
            results(Part(tool_response=ToolResponse("get_weather", "call|1.x", "blue"))),
            Message("model", [foreign]),
            Message("user", [Part(text="Well?")]),
        ],
    }


def _request(ref: str, city: str, metadata: Mapping[str, Any] | None = None) -> Part:
    return Part(tool_request=ToolRequest("get_weather", f"call_{ref}", {"city": city}), metadata=metadata)


def _response(ref: str, output: Any, metadata: Mapping[str, Any] | None = None) -> Part:
    return Part(tool_response=ToolResponse("get_weather", f"call_{ref}", output), metadata=metadata)

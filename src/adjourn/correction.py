"""Ready-made `on_interrupt` handlers: retry what is transient, mend what is malformed, ask at the terminal."""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO, cast

from adjourn.answer import Answer, PausedCall
from adjourn.schema import Misfit
from adjourn.setting import Handler
from adjourn.tool import Backoff, shape_of

When = Callable[[PausedCall], bool]


def is_transient(interrupt: PausedCall) -> bool:
    """Whether a pause says that trying again may help: an error that was turned into a pause, or `will_retry` in its payload.

    An approval never does, and neither does a run of unknown outcome.
    """
    if interrupt.reason == "error":
        return True
    payload = interrupt.payload
    return interrupt.reason == "tool" and isinstance(payload, Mapping) and bool(cast(Any, payload).get("will_retry"))


def retry(
    max: int = 3,
    base: float = 1.0,
    factor: float = 2.0,
    cap: float = 30.0,
    jitter: bool = True,
    when: When = is_transient,
) -> Handler:
    """Restarts a paused call up to `max` times, after a delay in seconds that grows from `base` to `cap`.

    The tool reads how often as `ctx.resumed_metadata["retry"]`. After that, or where `when` says no, the call stays
    paused, for the next handler or a person.
    """
    backoff = Backoff(base, factor, cap, jitter)

    def retry(interrupt: PausedCall) -> Answer | None:
        if not when(interrupt):
            return None
        done = interrupt.metadata.get("adjourn", {}).get("restarts", [])
        count = sum(1 for r in done if isinstance(r, Mapping) and "retry" in r)
        if count >= max:
            return None
        return interrupt.restart({"retry": count + 1}, after=backoff.delay(count + 1))

    return retry


def validate(model: Any, fix: Callable[[Any], Any] | None = None) -> Handler:
    """Responds with the payload as valid data of the type `model`.

    Where it does not fit, `fix` gets the payload and returns a mended one (or a coroutine of it); without `fix`, or where
    that does not fit either, the call stays paused.
    """
    shape = shape_of(model)

    async def validate(interrupt: PausedCall) -> Answer | None:
        try:
            return interrupt.respond(shape.validate(interrupt.payload))
        except Misfit:
            if fix is None:
                return None
        mended = fix(interrupt.payload)
        if inspect.isawaitable(mended):
            mended = await mended
        try:
            return interrupt.respond(shape.validate(mended))
        except Misfit:
            return None

    return validate


def first(*handlers: Handler) -> Handler:
    """Asks one handler after another until one decides."""

    async def first(interrupt: PausedCall) -> Any:
        for handler in handlers:
            answer = handler(interrupt)
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not None:
                return answer
        return None

    return first


def plain(value: Any) -> str:
    """Text that is safe to print: control characters, and with them escape sequences, are shown instead of sent."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


async def ask(interrupt: PausedCall, *, lines: TextIO | None = None, out: TextIO | None = None) -> Answer | None:
    """Asks at the terminal: approve (restart), respond with JSON or text, decline with a reason, or leave it paused."""
    source: TextIO = lines or sys.stdin
    target: TextIO = out or sys.stdout
    print(f"\n{plain(interrupt.name)} waits for you ({interrupt.reason})", file=target)
    print(f"  input:   {plain(interrupt.input)}", file=target)
    print(f"  payload: {plain(interrupt.payload)}", file=target)
    choices = [*(["[a]pprove"] if "restart" in interrupt.allow else []), "[r]espond", "[d]ecline", "[l]eave paused"]
    while True:
        choice = (await _line(f"{', '.join(choices)}: ", source, target)).lower()
        if choice in ("", "l"):
            return None
        if choice == "a" and "restart" in interrupt.allow:
            return interrupt.restart()
        if choice == "r":
            given = await _line("result (JSON or text, empty to leave it): ", source, target)
            return interrupt.respond(_json_or_text(given)) if given else None
        if choice == "d":
            return interrupt.decline(await _line("reason: ", source, target))
        print("Type the letter in brackets.", file=target)


async def _line(prompt: str, lines: TextIO, out: TextIO) -> str:
    print(prompt, end="", file=out, flush=True)
    return (await asyncio.to_thread(lines.readline)).strip()


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

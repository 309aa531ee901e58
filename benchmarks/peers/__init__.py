"""One file a candidate. Each has `START`, what its users import, and `CANDIDATES`: classes with the methods of `Candidate`.

Only the standard library may be imported by this file and by the worker, so that nothing but the candidate itself is
measured in the candidate's process.
"""

from typing import Any, Protocol

PLACE = "Kyoto"
QUESTION = "What is the weather in Kyoto?"


class Candidate(Protocol):
    """A library with a fake model that answers at once: it calls `weather(place)`, and says "done" to its result.

    Every operation checks that the tool ran once and that the model had the last word; `expect` does it.
    """

    async def tool_turn(self) -> None:
        """A session of one turn: user, model, tool, model."""
        ...

    async def pause(self) -> Any:
        """A session whose tool waits for a person. Returns all that is needed to go on."""
        ...

    async def resume(self, paused: Any) -> None:
        """Lets the paused tool run, and the turn end."""
        ...

    async def stream(self, chunks: int, pace: float) -> tuple[int, float]:
        """A turn without a tool whose model emits `chunks` pieces of text, read by somebody who sleeps `pace` s a piece.

        Returns how many came, and at what `time.perf_counter()` the model had said its last.
        """
        ...


def expect(what: str, found: Any, wanted: Any) -> None:
    """A benchmark of something that did not happen would be worthless."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")

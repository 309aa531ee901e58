"""One file a library. Each has `START` (what its users import), `DISTRIBUTIONS` (what they install) and `CANDIDATES`.

Only the standard library may be imported here and in the worker, so that a candidate's process holds nothing but the
candidate.
"""

from typing import Any, Protocol

PLACE = "Kyoto"
QUESTION = "What is the weather in Kyoto?"
WORD = "word "

OURS = "adjourn_"
PEERS = ("genkit_", "langgraph_", "pydantic_ai_", "openai_agents", "adk", "strands_")


class Candidate(Protocol):
    """One way to use a library, with a fake model that answers at once: it calls `weather(place)`, then says "done".

    Every operation checks that the model had the last word (`expect`), and counts the runs of its tool in `ran`, which
    the worker checks. A method that is None is a measure that this candidate is not part of.
    """

    label: str
    ran: int

    async def tool_turn(self) -> None:
        """A session of one turn: user, model, tool, model."""
        ...

    async def pause(self) -> Any:
        """A session whose tool waits for a person. Returns all that is needed to go on."""
        ...

    async def resume(self, paused: Any) -> None:
        """Lets the paused tool run, and the turn end."""
        ...

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        """A turn without a tool, whose model emits `chunks` times WORD, read by somebody who sleeps `pace` s a chunk.

        With `yields` the model lets the event loop go round once a chunk, as one that reads from a socket does.
        Returns how many chunks came, and at what `time.perf_counter()` the model had said its last.
        """
        ...


def expect(what: str, found: Any, wanted: Any) -> None:
    """A benchmark of something that did not happen would be worthless."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")

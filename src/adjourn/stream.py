"""What a watcher of a turn reads. The turn never waits for it."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from adjourn.answer import PausedCall
from adjourn.parts import OURS, Artifact, Chunk, FinishReason, Metadata, Part, ToolRequest, ToolResponse
from adjourn.promise import Waiters
from adjourn.setting import Progress

T = TypeVar("T")


class TurnEnd:
    """The last chunk of a leg: why it rests, and at which snapshot."""

    __slots__ = ("finish_reason", "snapshot_id")

    def __init__(self, finish_reason: FinishReason, snapshot_id: str | None) -> None:
        self.finish_reason = finish_reason
        self.snapshot_id = snapshot_id


class StreamChunk(msgspec.Struct):
    """One piece of news: text, a paused request, a tool's result, progress, an artifact, a state patch or the end.

    Each property is None (or "") where the chunk is of another kind. `raw` is the message chunk in its wire form. `said`
    are all texts of the leg, and `upto` how many of them had come with this chunk.
    """

    raw: Chunk | None = None
    said: Sequence[str] = ()
    upto: int = 0
    interrupt: Any = None
    progress: Progress | None = None
    artifact: Artifact | None = None
    custom_patch: list[dict[str, Any]] | None = None
    turn_end: TurnEnd | None = None

    @property
    def text(self) -> str:
        return self.raw.text if self.raw is not None else ""

    @property
    def reasoning(self) -> str:
        return self.raw.reasoning if self.raw is not None else ""

    @property
    def accumulated_text(self) -> str:
        """All text of this leg up to and with this chunk."""
        return "".join(self.said[: self.upto])

    def _first(self, kind: str) -> Any:
        if self.raw is not None:
            for part in self.raw.content:
                value = getattr(part, kind)
                if value is not None:
                    return value
        return None

    @property
    def tool_request(self) -> ToolRequest | None:
        """The request that just paused."""
        return self._first("tool_request")

    @property
    def tool_response(self) -> ToolResponse | None:
        """The (first) result that goes to the model; `raw.content` has them all."""
        return self._first("tool_response")

    def __repr__(self) -> str:
        for kind in ("interrupt", "progress", "artifact", "custom_patch", "turn_end"):
            if getattr(self, kind) is not None:
                return f"<StreamChunk {kind}>"
        return f"<StreamChunk {self.raw!r}>"


class Feed(Generic[T]):
    """An endless list that can be read while it grows, by any number of readers, each from the start."""

    __slots__ = ("_closed", "_items", "_waiting")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiting = Waiters()
        self._closed = False

    def put(self, item: T) -> None:
        self._items.append(item)
        self._waiting.wake()

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._waiting.wake()

    async def __aiter__(self) -> AsyncIterator[T]:
        position = 0
        items = self._items
        while True:
            while position < len(items):
                yield items[position]
                position += 1
            if self._closed:
                return
            await self._waiting.wait(lambda: position < len(items) or self._closed)  # noqa: B023 (it is asked now)


class Watcher:
    """Turns what the driver tells into chunks of a feed, and collects the interrupts on the way."""

    __slots__ = ("_said", "_wrap", "feed", "interrupts")

    def __init__(self, wrap: Callable[[PausedCall], Any] | None = None) -> None:
        self.feed: Feed[StreamChunk] = Feed()
        self.interrupts: list[Any] = []
        self._wrap = wrap
        self._said: list[str] = []

    def __call__(self, news: Chunk | Progress | PausedCall) -> None:
        """The driver's sink."""
        if isinstance(news, Chunk):
            said = self._said
            if news.role == "model":
                noted: Metadata = (news.metadata.get(OURS) if news.metadata is not None else None) or {}
                if noted.get("discard"):
                    said = self._said = []  # a failed attempt's text does not count
                for part in news.content:
                    if part.text:
                        said.append(part.text)
            self.feed.put(StreamChunk(news, said, len(said)))
        elif isinstance(news, PausedCall):
            self.pause(news if self._wrap is None else self._wrap(news))
        else:
            self.feed.put(StreamChunk(None, self._said, len(self._said), progress=news))

    def pause(self, interrupt: Any) -> None:
        """A new pause: in the list before its chunk is in the feed."""
        self.interrupts.append(interrupt)
        part = Part(tool_request=interrupt.tool_request, metadata=interrupt.metadata)
        self.feed.put(StreamChunk(Chunk("tool", 0, [part]), self._said, len(self._said), interrupt))

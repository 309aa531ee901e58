"""What a session has beside its transcript: custom state, artifacts, sessions of nested agents; as a leg changes them."""

from typing import Any

from msgspec import UNSET

from adjourn.conversation import Conversation
from adjourn.events import Json
from adjourn.parts import Artifact, convert, new_id, to_json
from adjourn.patch import difference
from adjourn.stream import StreamChunk, Watcher

_NOTHING: tuple[Any, dict[str, Artifact], int] = UNSET, {}, 0


class Belongings:
    """What changed and is yet to be committed. Whoever watches the leg hears of each change."""

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self._state: Any = UNSET
        self._artifacts: dict[str, Artifact] = {}
        self._inner: list[str] = []
        self._shown: Any = UNSET
        self._carried: tuple[Any, dict[str, Artifact], int] = _NOTHING

    def watch(self, watcher: Watcher | None) -> None:
        """A leg begins. Its first patch is the whole state."""
        self._shown, self.watcher = UNSET, watcher

    def set_state(self, data: Json, at: Conversation) -> None:
        if self.watcher is not None:
            whole = [{"op": "replace", "path": "", "value": data}]
            patch = whole if self._shown is UNSET else difference(self._shown, data)
            if patch:
                self._shown = data
                self.watcher.feed.put(StreamChunk(custom_patch=patch))
        at.state = self._state = data

    def add(self, artifact: Artifact, at: Conversation) -> None:
        artifact = convert(to_json(artifact, "artifact"), Artifact)  # refused here, not when it is read back
        key = artifact.name or new_id("a_")
        at.artifacts[key] = self._artifacts[key] = artifact
        if self.watcher is not None:
            self.watcher.feed.put(StreamChunk(artifact=artifact))

    def add_inner(self, session_id: str) -> None:
        self._inner.append(session_id)

    def onto(self, at: Conversation) -> None:
        """What was set for the next turn holds wherever that one begins."""
        if self._state is not UNSET:
            at.state = self._state
        at.artifacts |= self._artifacts

    def unsaved(self) -> tuple[Any, tuple[Artifact, ...], tuple[str, ...]]:
        """State, artifacts and inner sessions, for a commit."""
        self._carried = self._state, dict(self._artifacts), len(self._inner)
        return self._state, tuple(self._artifacts.values()), tuple(self._inner)

    def saved(self) -> None:
        """The last commit has them. What was changed while it was under way waits for the next one."""
        (state, artifacts, inner), self._carried = self._carried, _NOTHING
        self._state = UNSET if self._state is state else self._state
        self._artifacts = {k: a for k, a in self._artifacts.items() if artifacts.get(k) is not a}
        del self._inner[:inner]

    def clear(self) -> None:
        """They were those of a leg that broke off."""
        self._state, self._artifacts, self._inner, self._carried = UNSET, {}, [], _NOTHING

"""Language models that run on this machine, without a key and without a network."""

from collections.abc import Callable, Iterable
from typing import Literal, overload

from adjourn.errors import UnknownModel
from adjourn.parts import Usage
from adjourn.plugins.local.needle import Needle, NeedleConfig
from adjourn.plugins.local.smollm2 import SmolLM2, SmolLM2Config, sentence

__all__ = ["Local", "Needle", "NeedleConfig", "SmolLM2", "SmolLM2Config"]


class Local:
    """The plugin: `Adjourn(plugins=[Local()], model="local/needle")`.

    Past `max_tools` tools, or `max_characters` of tool definitions or of conversation, local/needle refuses a request
    with a ModelError: the engine would take minutes over it and then choose badly. Where local/smollm2 is installed,
    too, it writes a closing sentence for local/needle, unless `sentences=False`.
    """

    name = "local"

    def __init__(self, *, max_tools: int = 30, max_characters: int = 8_000, sentences: bool = True) -> None:
        self._smollm2 = SmolLM2()
        self._needle = Needle(max_tools, max_characters, self._write if sentences else None)

    @overload
    def model(self, name: Literal["needle"]) -> Needle: ...
    @overload
    def model(self, name: Literal["smollm2"]) -> SmolLM2: ...
    @overload
    def model(self, name: str) -> Needle | SmolLM2: ...
    def model(self, name: str) -> Needle | SmolLM2:
        """Raises UnknownModel for anything but "needle" and "smollm2"."""
        if name == "needle":
            return self._needle
        if name == "smollm2":
            return self._smollm2
        raise UnknownModel(f"there is no model 'local/{name}'; known: local/needle, local/smollm2")

    def list_models(self) -> Iterable[str]:
        return ["needle", "smollm2"]

    async def _write(self, prompt: str, results: str, listen: Callable[[str], None]) -> tuple[str, Usage]:
        return await sentence(prompt, results, listen) if self._smollm2.available else ("", Usage())

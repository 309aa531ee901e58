"""Language models that run on this machine, without a key and without a network."""

from collections.abc import Iterable

from adjourn.errors import UnknownModel
from adjourn.plugins.local.needle import Needle, NeedleConfig

__all__ = ["Local", "Needle", "NeedleConfig"]


class Local:
    """The plugin: `Adjourn(plugins=[Local()], model="local/needle")`.

    Past `max_tools` tools, or `max_characters` of tool definitions or of conversation, a request is refused with a
    ModelError: the engine would take minutes over it and then choose badly.
    """

    name = "local"

    def __init__(self, *, max_tools: int = 30, max_characters: int = 8_000) -> None:
        self._needle = Needle(max_tools, max_characters)

    def model(self, name: str) -> Needle:
        """Raises UnknownModel for anything but "needle"."""
        if name != "needle":
            raise UnknownModel(f"there is no model 'local/{name}'; known: local/needle")
        return self._needle

    def list_models(self) -> Iterable[str]:
        return ["needle"]

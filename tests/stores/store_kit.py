"""What the store tests share: stores of every kind, and turns driven through the ledger without models or tools."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from adjourn import MemoryStore, Store
from adjourn.events import (
    Event,
    Limits,
    ModelReplied,
    Pause,
    ToolInterrupted,
    ToolReturned,
    ToolStarted,
    TurnEnded,
    UserSaid,
)
from adjourn.ledger import Leg, Saved, Write, save
from adjourn.parts import Message, Part, ToolRequest, Usage, new_id
from adjourn.state import Finished, Paused
from adjourn.store import InMemoryLatestStateStore, Tx
from adjourn.turn import begin, next_step, record

T = TypeVar("T")

KINDS = ["memory", "latest", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
LASTING = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
TESTS = Path(__file__).resolve().parent.parent


class Place:
    """Where rows are kept: `open` gives one more store on them, as another process would have it, `fresh` an empty one."""

    def __init__(self, kind: str, folder: Path, dsn: str = "") -> None:
        self.kind = kind
        self.keeps_history = kind != "latest"
        self._folder = folder
        self.dsn = dsn
        self._opened: list[Store] = []
        self._schemas: list[str] = []
        self.name = ""
        self._memory: Store = MemoryStore()
        self.move()

    def move(self) -> None:
        """To rows that nobody has used."""
        self.name = f"t_{uuid.uuid4().hex}"
        self._memory = InMemoryLatestStateStore() if self.kind == "latest" else MemoryStore()
        self._schemas.append(self.name)

    def open(self, **options: Any) -> Store:
        store = self._open(options)
        self._opened.append(store)
        return store

    def _open(self, options: dict[str, Any]) -> Store:
        if self.kind == "sqlite":
            from adjourn.stores.sqlite import SQLiteStore

            return SQLiteStore(self.path, **options)
        if self.kind == "postgres":
            from adjourn.stores.postgres import PostgresStore

            return PostgresStore(self.dsn, schema=self.name, **options)
        return self._memory

    def fresh(self) -> Store:
        self.move()
        return self.open()

    @property
    def path(self) -> Path:
        return self._folder / f"{self.name}.db"

    @property
    def code(self) -> str:
        """What a child process has to run to open the same rows as `store`."""
        if self.kind == "sqlite":
            return f"from adjourn.stores.sqlite import SQLiteStore\nstore = SQLiteStore({str(self.path)!r})\n"
        return (
            "from adjourn.stores.postgres import PostgresStore\n"
            f"store = PostgresStore({self.dsn!r}, schema={self.name!r}, connections=2)\n"
        )

    def close(self) -> None:
        for store in self._opened:
            store.close()
        if self.kind == "postgres":
            import psycopg

            with psycopg.connect(self.dsn, autocommit=True) as db:
                for schema in self._schemas:
                    db.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


def do(store: Store, work: Callable[[Tx], T], *, read: bool = False) -> T:
    return store.submit(work, read=read).result(60)


def child(code: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """A Python process that runs `code`."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def said_by(process: "subprocess.Popen[str]", seconds: float = 60) -> str:
    """What a child printed. It must have ended well, and said nothing of leaks."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, f"exit {process.returncode}: {err}"
    assert "Warning" not in err, err
    return out


def line_of(process: "subprocess.Popen[str]") -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Driver:
    """Drives turns of one session straight through the ledger: no model, no tools, only their events."""

    def __init__(self, store: Store, session_id: str | None = None, *, text: str = "words " * 33) -> None:
        self.store = store
        self.text = text
        self.now = 1000.0
        self.session_id = session_id or new_id("s_")
        self.parent: str | None = None
        self.leg = self.new_leg()
        self.turn = begin((), Limits())
        self.interrupts: list[str] = []

    def new_leg(self, turn_id: str | None = None, *, branch: bool = False) -> Leg:
        snapshot = new_id("n_")
        return Leg(
            self.session_id,
            snapshot,
            turn_id or snapshot,
            "agent",
            new_id("h_"),
            self.now,
            self.parent,
            branch=branch,
            open=frozenset(getattr(self, "interrupts", ())),
        )

    def next_leg(self, *, new_turn: bool = False, branch: bool = False) -> None:
        self.parent = self.leg.snapshot_id
        self.leg = self.new_leg(None if new_turn else self.leg.turn_id, branch=branch)
        if new_turn:
            self.turn = begin((), Limits())

    def write(self, events: Sequence[Event], **changes: Any) -> Write:
        turn = self.turn
        for event in events:
            turn = record(turn, event)
        step = next_step(turn)
        rest = step if isinstance(step, Paused | Finished) else None
        self.turn = turn
        return Write(self.leg, turn, events, rest, self.now, 15.0, **changes)

    def commit(self, *events: Event, **changes: Any) -> Saved:
        before = self.turn
        write = self.write(events, **changes)
        try:
            saved = do(self.store, lambda tx: save(tx, write))
        except BaseException:
            self.turn = before
            raise
        self.leg = saved.leg
        return saved

    def ask(self, calls: int = 1) -> list[str]:
        """The user's message and a reply that asks for tools, started; gives the calls' ids."""
        ids = [new_id("c_") for _ in range(calls)]
        parts = [Part(tool_request=ToolRequest("look", f"r{i}", {"query": self.text[:40]})) for i in range(calls)]
        self.commit(
            UserSaid(Message("user", [Part(text=self.text)])),
            ModelReplied(Message("model", parts), tuple(ids), usage=Usage(120, 30), took=0.123),
            *[ToolStarted(i) for i in ids],
        )
        return ids

    def pause(self, calls: int = 1, **pause: Any) -> list[str]:
        """A turn that comes to rest on as many pauses; gives their ids."""
        ids = self.ask(calls)
        self.interrupts = [new_id("i_") for _ in ids]
        self.commit(
            *[
                ToolInterrupted(c, Pause(i, {"approve": self.text[:40]}, **pause))
                for c, i in zip(ids, self.interrupts, strict=True)
            ]
        )
        return self.interrupts

    def end(self) -> None:
        """The model's last word."""
        self.commit(
            ModelReplied(Message("model", [Part(text=self.text)]), usage=Usage(200, 50), took=0.2), TurnEnded("stop")
        )

    def whole_turn(self) -> None:
        """A turn with one tool call that does not pause: three commits."""
        (call,) = self.ask()
        self.commit(ToolReturned(call, {"result": self.text}, took=0.05))
        self.end()
        self.next_leg(new_turn=True)

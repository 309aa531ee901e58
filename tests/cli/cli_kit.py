"""What the tests of the command line share: a shop in a folder, commands run in this process and in others, a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyte
from typer.testing import CliRunner

from adjourn import AgentInit
from adjourn.cli.program import app
from adjourn.events import UserSaid
from adjourn.inbox import Accepted
from adjourn.lease import transact
from adjourn.parts import Message, Part
from adjourn.records import InterruptRecord, SessionRecord, Snapshot

HERE = Path(__file__).parent
APP = "shop_app:make"
SECONDS = 60.0


class Result:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """All of standard output, as the one JSON value it must be."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output, as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """Standard error, as the one error object it must be."""
        return json.loads(self.err)["error"]

    def __repr__(self) -> str:
        return f"<{self.code}>\n{self.out}\n--\n{self.err}"


class Shop:
    """A folder with the store of `shop_app`, and ways to run `adjourn` about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = str(folder / "shop.db")
        self.app: Callable[[], Any] = _make

    # -- commands

    def run(self, *arguments: str, input: str | None = None) -> Result:
        """A command in this process, with pipes for streams."""
        got = CliRunner().invoke(app, [str(a) for a in arguments], input=input)
        if got.exception is not None and not isinstance(got.exception, SystemExit):
            raise got.exception
        return Result(got.exit_code, got.stdout, got.stderr)

    def __call__(self, *arguments: str, input: str | None = None) -> Result:
        """A command about the store."""
        return self.run(*arguments, "--store", self.store, input=input)

    def process(self, *arguments: str, input: str | None = None, **env: str) -> Result:
        """A command in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "adjourn.cli", *arguments],
            input=input, capture_output=True, text=True, cwd=HERE, env=self.env(env), timeout=SECONDS, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        """A process that goes on; its output is read line by line."""
        return subprocess.Popen(
            [sys.executable, "-m", "adjourn.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE, env=self.env(env),
        )  # fmt: skip

    def terminal(self, *arguments: str, size: tuple[int, int] = (80, 40), **env: str) -> "Terminal":
        return Terminal([sys.executable, "-m", "adjourn.cli", *arguments], size, self.env(env))

    def env(self, more: dict[str, str]) -> dict[str, str]:
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("ADJOURN_") and k not in ("NO_COLOR", "EDITOR", "VISUAL", "COLUMNS", "LINES")
        }
        return {**kept, "SHOP_FOLDER": str(self.folder), "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1", **more}

    # -- what is in the store

    def effects(self) -> list[str]:
        path = self.folder / "effects.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def say(
        self, message: str, *, session_id: str | None = None, owner: str | None = None, agent: str = "clerk"
    ) -> str:
        """A message of a user; returns the session's id when the turn rests."""

        async def work() -> str:
            ai = self.app()
            try:
                session = ai.agents[agent].connect(AgentInit(session_id, owner=owner))
                turn = session.send(message)
                await turn.settled()
                await session.close()
                return session.id
            finally:
                await ai.aclose()

        return asyncio.run(work())

    def leave(self, message: str) -> str:
        """A session that a dead process left after this message; returns its id."""

        def put(tx: Any) -> None:
            tx.put_session(SessionRecord("s_left", "clerk", 1.0, 1.0, head="n_left", pending=True, epoch=1))
            tx.put_snapshot(Snapshot("n_left", "s_left", "n_left", "clerk", 1.0, 1.0, batches=1))
            tx.add_events("n_left", 0, [UserSaid(Message("user", [Part(text=message)]))])

        self.with_app(lambda ai: transact(ai.stores()[0], put))
        return "s_left"

    def waiting(self) -> list[InterruptRecord]:
        async def work(ai: Any) -> list[InterruptRecord]:
            return list((await ai.inbox.list(limit=1000)).items)

        return self.with_app(work)

    def decline(self, interrupt_id: str) -> Accepted:
        return self.with_app(lambda ai: ai.inbox.decline(interrupt_id, by="somebody", run=False))

    def with_app(self, work: Callable[[Any], Any]) -> Any:
        async def whole() -> Any:
            ai = self.app()
            try:
                return await work(ai)
            finally:
                await ai.aclose()

        return asyncio.run(whole())


def make_nested() -> Any:
    from cli import shop_app

    return shop_app.make_nested()


def _make() -> Any:
    from cli import shop_app

    return shop_app.make()


class Terminal:
    """A process in a pseudo-terminal: what is on its screen, and every byte that was written to it."""

    def __init__(self, command: Sequence[str], size: tuple[int, int], env: dict[str, str]) -> None:
        columns, rows = size
        self.raw = b""
        self._screen = pyte.Screen(columns, rows)
        self._screen.write_process_input = self._answer
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._ended = False
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=HERE, env=env, start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call, before exec
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _answer(self, data: str) -> None:
        os.write(self._master, data.encode())

    def _read(self) -> None:
        while True:
            try:
                got = os.read(self._master, 65536)
            except OSError:
                got = b""
            with self._changed:
                self.raw += got
                self._ended = not got
                if got:
                    self._stream.feed(got)
                self._changed.notify_all()
            if not got:
                return

    @property
    def screen(self) -> str:
        with self._changed:
            return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def see(self, text: str) -> "Terminal":
        """Returns when the text is on the screen."""
        with self._changed:
            found = self._changed.wait_for(lambda: text in self._text() or self._ended, SECONDS)
        assert found, f"never saw {text!r} on:\n{self.screen}"
        assert text in self.screen, f"never saw {text!r} on:\n{self.screen}"
        return self

    def gone(self, text: str) -> "Terminal":
        """Returns when the text is not on the screen any more."""
        with self._changed:
            found = self._changed.wait_for(lambda: text not in self._text(), SECONDS)
        assert found, f"{text!r} is still on:\n{self.screen}"
        return self

    def modes(self) -> list[Any]:
        """How the terminal takes what is typed: whether it echoes, and waits for whole lines."""
        return termios.tcgetattr(self._master)

    def until(self, true: Callable[[], bool]) -> "Terminal":
        """Returns when it is true."""
        end = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < end, f"never came to be so:\n{self.screen}"
            self.process.poll()
            time.sleep(0.01)
        return self

    def asked(self) -> "Terminal":
        """Returns when it asks for the next message: what is typed before that is not taken."""
        return self.until(lambda: self.screen.endswith("\n>"))

    def _text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def type(self, keys: str) -> "Terminal":
        os.write(self._master, keys.encode())
        return self

    def end(self) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._reader.join(5)
        os.close(self._master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


UP, DOWN, ENTER, ESC, CTRL_C, CTRL_D = "\x1b[A", "\x1b[B", "\r", "\x1b", "\x03", "\x04"


def read_until(process: "subprocess.Popen[str]", word: str) -> str:
    """The first line that has the word in it; fails where the process ends before."""
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if word in line:
            return line
    raise AssertionError(f"ended without {word!r}:\n{''.join(seen)}")

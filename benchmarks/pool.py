"""The candidates' processes, from the coordinator's side: one line of JSON each way, a deadline on every answer."""

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class WorkerFailed(Exception):
    """A candidate could not do what it was asked; the message says why."""


def environment(caches: Path) -> dict[str, str]:
    """What a measured process gets: byte code kept, in a place of ours, and no settings of Python or tracers."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OTEL_", "LANGCHAIN_", "LANGSMITH_"))}
    quiet = {
        "PYTHONPATH": str(ROOT),
        # Editable installs and environments without byte code would be measured compiling. The first start fills it.
        "PYTHONPYCACHEPREFIX": str(caches),
        "OPENAI_API_KEY": "none",
        "GENKIT_ENV": "prod",
    }
    return {**kept, **quiet}


class Worker:
    """A long-lived process with one candidate. `label` and `methods` are what it said of itself at the start."""

    def __init__(self, python: str, module: str, name: str, env: Mapping[str, str], patience: float = 120.0) -> None:
        self.key = f"{module}:{name}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._patience = patience
        self._rest = b""
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", module, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=dict(env), cwd=tempfile.gettempdir(),
        )  # fmt: skip
        hello = self._read()
        self.label: str = hello["label"]
        self.methods: list[str] = hello["methods"]

    def ask(self, **order: Any) -> dict[str, Any]:
        """Has it measure something. Raises WorkerFailed, also where it takes longer than `patience`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as e:
            raise WorkerFailed(f"{self.key}: {e}; {self._last_words()}") from e
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([fd], [], [], self._patience)
            if not ready:
                raise WorkerFailed(f"{self.key}: no answer in {self._patience:g} s")
            data = os.read(fd, 1 << 20)
            if not data:
                raise WorkerFailed(f"{self.key}: {self._last_words() or 'the process ended'}")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.key}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Ends the process; by force, if it does not go by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        try:
            self._process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

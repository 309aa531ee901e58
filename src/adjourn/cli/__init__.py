"""The command line. This module imports nothing optional, so that `main` can say what is missing."""

import sys

_NEEDED = ("typer", "click", "rich", "prompt_toolkit")


def main() -> int:
    """Runs `adjourn` with the arguments of this process; returns the exit code."""
    try:
        return _run()
    except KeyboardInterrupt:  # before a command could take care of it: what it needs was still being loaded
        stopped = '{"error":{"code":"interrupted","message":"interrupted","exit":130,"details":null}}'
        sys.stderr.write((stopped if "--json" in sys.argv else "Stopped.") + "\n")
        return 130


def _run() -> int:
    try:
        from adjourn.cli.program import run
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.stderr.write(
            f"adjourn: the command line needs {missing}, which is not installed. Install it with: pip install 'adjourn[cli]'\n"
        )
        return 2
    return run()

"""The command line. This module imports nothing optional, so that `main` can say what is missing."""

import sys

_NEEDED = ("typer", "click", "rich", "prompt_toolkit")


def main() -> int:
    """Runs `adjourn` with the arguments of this process; returns the exit code."""
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

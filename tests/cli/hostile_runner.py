"""Runs a list of command lines, one after the other, in one process: for a terminal that records every byte."""

import json
import sys

from adjourn.cli.program import run


def main() -> None:
    for arguments in json.loads(sys.argv[1]):
        sys.stdout.write(f"--- {arguments}\n")
        sys.stdout.flush()
        code = run(arguments)
        sys.stdout.write(f"=== {code}\n")
        sys.stdout.flush()
    sys.stdout.write("all of them ran\n")


if __name__ == "__main__":
    main()

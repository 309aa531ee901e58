"""`python -m adjourn.cli` is `adjourn`."""

import sys

from adjourn.cli import main

if __name__ == "__main__":
    sys.exit(main())

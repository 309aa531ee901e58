"""`python -m adjourn.cli` is `adjourn`."""

import sys

if __name__ == "__main__":
    try:
        from adjourn.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())

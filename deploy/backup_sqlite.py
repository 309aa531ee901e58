"""A copy of a SQLite store, made while servers and workers use it: backup_sqlite.py STORE FOLDER [--keep N].

SQLite's own online backup: the copy is the store as it stood at one moment, whatever is written meanwhile. A plain `cp` of a
store in use is not: the newest commits stand in a second file. The copy is checked and synced before it gets its name, so
that whatever lies there as *.db is whole.
"""

import argparse
import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path


def copy(store: Path, target: Path) -> None:
    """Copies in one step: in small steps, each commit that another process makes would start it anew."""
    source = f"{store.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(target)) as kept:
        live.backup(kept)
        kept.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, with nothing beside it
        problems = [row[0] for row in kept.execute("PRAGMA integrity_check(5)")]
    if problems != ["ok"]:
        raise sqlite3.DatabaseError(f"the copy is damaged, so the store may be: {problems[0]}")


def sync(path: Path) -> None:
    """Returns when it is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy a SQLite store that is in use.")
    parser.add_argument("store", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="delete all but the newest N copies (0: none)")
    given = parser.parse_args()
    target: Path = given.folder / f"{given.store.stem}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.db"
    part = target.with_suffix(".part")
    try:
        copy(given.store, part)
        part.chmod(0o600)
        sync(part)
        part.replace(target)
        sync(given.folder)
    except (OSError, sqlite3.Error) as e:
        part.unlink(missing_ok=True)
        print(f"{given.store} was not backed up: {e}", file=sys.stderr)
        return 1
    print(target)
    if given.keep > 0:
        for old in sorted(given.folder.glob(f"{given.store.stem}-*Z.db"))[: -given.keep]:
            old.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

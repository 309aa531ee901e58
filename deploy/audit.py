"""Who decided what: audit.py [--by NAME]. A line of JSON for each decision that the feed of the inbox still has, oldest first."""

import argparse
import asyncio
import json
import sys

import app
from msgspec import UNSET

from adjourn.display import visible
from adjourn.parts import digest


async def main() -> int:
    parser = argparse.ArgumentParser(description="List decisions.")
    parser.add_argument("--by", help="only what was decided under this name")
    given = parser.parse_args()
    ai = app.make()
    after: str | None = None
    try:
        while changes := await ai.inbox.changes(after, limit=500):
            after = changes[-1].position
            for change in changes:
                if change.decision_id is None:
                    continue
                made = next(
                    (d for d in await ai.inbox.history(change.interrupt_id) if d.id == change.decision_id), None
                )
                if made is None or (given.by is not None and made.by != given.by):
                    continue
                facts = {"at": made.at, "by": made.by, "address": made.address, "verb": made.verb}
                facts |= {"interrupt": made.interrupt_id, "session": made.session_id, "input": made.input_digest}
                if made.input is not UNSET:  # what was shown was approved with another input
                    facts["replacedBy"] = digest(made.input)
                print(visible(json.dumps(facts)))
    finally:
        await ai.aclose()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

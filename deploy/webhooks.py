"""How far each webhook of the application has come: a line of JSON each. Exit code 1 where one is failing or dropped news."""

import asyncio
import json
import sys
import time

import app

from adjourn.server.webhooks import states


async def main() -> int:
    ai = app.make()
    bad = False
    try:
        for name, kept in (await states(ai, app.webhooks())).items():
            for state in kept:
                failing = None if state.failing_since is None else round(time.time() - state.failing_since)
                bad = bad or failing is not None or state.dropped > 0
                facts = {
                    "hook": name,
                    "position": state.position,
                    "delivered": state.delivered,
                    "attempts": state.attempts,
                }
                facts |= {"failingSeconds": failing, "error": state.error, "dropped": state.dropped}
                print(json.dumps(facts))
    finally:
        await ai.aclose()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

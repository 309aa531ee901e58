"""A process is killed in the middle of a tool; a fresh one finds the session in its SQLite file and goes on.

Nobody can know whether the cut-off run took effect, so it is not repeated: it comes back as a pause.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from adjourn import Adjourn, AgentInit, ToolRunContext, run_sync
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call


def make_app(folder: Path, replies: Sequence[object]) -> Adjourn:
    ai = Adjourn(model=ScriptedModel(replies))

    @ai.tool()
    def book(train: str, ctx: ToolRunContext) -> str:
        """Book a seat on a train."""
        with (folder / "bookings.txt").open("a") as bookings:
            bookings.write(f"{train}\n")
        if not ctx.is_resumed():
            os.kill(os.getpid(), signal.SIGKILL)  # after the booking, and before its result is stored
        return "booked"

    # A dead process holds its session until its lease ends. 15 seconds are the default; one is enough here.
    store = SQLiteStore(folder / "sessions.db", lease_seconds=1.0)
    ai.define_agent("travel", tools=[book], store=store)
    return ai


async def begin(folder: Path) -> None:
    ai = make_app(folder, [call("book", {"train": "IC 5"})])
    await ai.agents["travel"].connect(AgentInit(owner="ann")).send("Book me a seat on IC 5.").output


async def go_on(folder: Path) -> None:
    ai = make_app(folder, ["You have a seat on IC 5."])
    await asyncio.sleep(1.2)  # nobody may take the session while the lease lasts
    turns = await ai.recover()
    output = await turns[0].output
    pause = output.interrupts[0]
    print("Found:", output.finish_reason, "-", pause.name, pause.input, "-", pause.reason)
    print("Bookings made:", (folder / "bookings.txt").read_text().split("\n")[:-1])
    output = await pause.respond("booked").output  # we looked, and it is booked: no second run
    print(output.finish_reason, "-", output.text)
    print("Bookings in the end:", (folder / "bookings.txt").read_text().count("IC 5"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.run([sys.executable, __file__, folder], check=False)
        print("The child was killed:", child.returncode == -signal.SIGKILL)
        run_sync(go_on(Path(folder)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_sync(begin(Path(sys.argv[1])))
    else:
        main()

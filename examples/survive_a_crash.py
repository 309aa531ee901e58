"""A process is killed in the middle of a tool; a fresh one finds the session in its SQLite file and goes on.

Nobody can know whether the cut-off run took effect, so it is not repeated: it comes back as a pause.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from adjourn import Adjourn, Agent, AgentInit, ToolRunContext, run_sync
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call

SESSION = "trip-1"


def make_agent(folder: Path, replies: list[object]) -> Agent:
    ai = Adjourn(model=ScriptedModel(replies))

    @ai.tool()
    def book(train: str, ctx: ToolRunContext) -> str:
        """Book a seat on a train."""
        with (folder / "bookings.txt").open("a") as bookings:
            bookings.write(f"{train}\n")
        if not ctx.is_resumed():
            os.kill(os.getpid(), signal.SIGKILL)  # the power fails, after the booking and before its result is stored
        return "booked"

    return ai.define_agent("travel", tools=[book], store=SQLiteStore(folder / "sessions.db"))


async def begin(folder: Path) -> None:
    agent = make_agent(folder, [call("book", {"train": "IC 5"})])
    await agent.connect(AgentInit(session_id=SESSION)).send("Book me a seat on IC 5.").output


async def go_on(folder: Path) -> None:
    agent = make_agent(folder, ["You have a seat on IC 5."])
    async with agent.connect(AgentInit(session_id=SESSION)) as session:
        pause = session.interrupts[0]
        print("Found:", pause.name, pause.input, "-", pause.reason)
        bookings = (folder / "bookings.txt").read_text().split("\n")[:-1]
        print("Bookings made:", bookings)
        output = await pause.respond("booked").output  # we looked, and it is booked: no second run
        print(output.finish_reason, "-", output.text)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.run([sys.executable, __file__, folder])
        print("The child was killed:", child.returncode == -signal.SIGKILL)
        run_sync(go_on(Path(folder)))
        print("Bookings in the end:", (Path(folder) / "bookings.txt").read_text().count("IC 5"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_sync(begin(Path(sys.argv[1])))
    else:
        main()

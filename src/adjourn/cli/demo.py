"""`adjourn demo`: a pause and both answers to it, without a key or a network."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from adjourn.app import Adjourn
from adjourn.cli.chat_pauses import decide_here, show_pause
from adjourn.cli.commands import Group, Shell
from adjourn.cli.facts import turn_facts
from adjourn.cli.failures import Left
from adjourn.cli.place import open_store
from adjourn.cli.screen import safe
from adjourn.cli.view import Outcome, TurnView
from adjourn.errors import AdjournError
from adjourn.handle import AgentInit, AgentOutput, AgentTurn
from adjourn.session import AgentSession
from adjourn.store import MemoryStore

AGENT = "support"
FIRST = "Order 17 arrived broken. Please give me my 40 euros back."
SECOND = "And when will the replacement be sent?"
_DAY = {"day": "Tuesday", "before_noon": True}


def add_to(group: Group) -> None:
    group.command("demo", about="none", panel="Running")(demo)


async def demo(
    shell: Shell,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Let it answer by itself.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep its sessions in this file, and leave one waiting to be decided with the other commands."
        ),
    ] = None,
) -> None:
    """Show a pause and both answers to it: a tool that is approved and runs, and one whose result a person gives."""
    from adjourn.cli.demo_app import make  # pydantic's models take a while, and no other command needs them

    store = MemoryStore() if keep is None else open_store(str(keep), create=True)
    ai = make(store, 0.03 if shell.screen.is_terminal else 0.0)
    try:
        await Demo(shell, ai, asks=shell.screen.interactive and not yes).run(keep)
    finally:
        await ai.aclose()


class Demo:
    """The two turns. `asks` says whether a person decides; else it answers by itself and says how."""

    def __init__(self, shell: Shell, ai: Adjourn, *, asks: bool) -> None:
        self._screen = shell.screen
        self._asks = asks
        self._ai = ai
        self._view = TurnView(shell.screen, ai)
        self._steps: list[Any] = []

    async def run(self, keep: Path | None) -> None:
        say = self._screen.say
        say(
            "A support agent on a scripted model. Its tools pause, and somebody decides how each goes on.", style="bold"
        )
        say("Nothing leaves this machine; everything the model says is a script.", style="dim")
        session = self._ai.agents[AGENT].connect(AgentInit(owner="ann"))
        await self._turn(session, FIRST)
        await self._turn(session, SECOND)
        await session.close()
        left = await self._leave_one() if keep is not None else ""
        self._end(keep, left)

    async def _turn(self, session: AgentSession, message: str) -> None:
        say = self._screen.say
        say()
        say(Text("> ", "bold cyan"), Text(message, "bold"))
        outcome = await self._follow(session.send(message))
        while isinstance(outcome, AgentOutput) and session.interrupts:
            outcome = await self._follow(await self._decide(session))
        if isinstance(outcome, BaseException):
            raise outcome

    async def _follow(self, turn: AgentTurn) -> Outcome:
        outcome = await self._view.follow(turn)
        self._steps.append(turn_facts(outcome))
        return outcome

    async def _decide(self, session: AgentSession) -> AgentTurn:
        if self._asks:
            while True:
                try:
                    turn = await decide_here(self._screen, session)
                except AdjournError as e:
                    self._screen.note(str(e), style="red")
                    continue
                if turn is None:
                    raise Left("The demo ends here; what waited is forgotten.")
                return turn
        interrupt = session.interrupts[0]
        show_pause(self._screen, interrupt)
        if "restart" in interrupt.allow:
            self._screen.say("Answered by itself: restart, so the tool now runs (an approval).", style="cyan")
            return interrupt.restart()
        self._screen.say("Answered by itself: respond, so the tool never runs and this is its result:", style="cyan")
        self._screen.quote("day=Tuesday, before_noon=true")
        return interrupt.respond(_DAY)

    async def _leave_one(self) -> str:
        """Leaves a call that waits; returns its id."""
        session = self._ai.agents[AGENT].connect(AgentInit(owner="ann"))
        output = await session.send(FIRST).output
        self._steps.append(turn_facts(output))
        await session.close()
        return output.interrupts[0].id

    def _end(self, keep: Path | None, left: str) -> None:
        screen = self._screen
        screen.give({"turns": self._steps, "store": str(keep) if keep is not None else None})
        screen.say()
        screen.say("That was it.", style="bold")
        app = "adjourn.cli.demo_app:make"
        lines = [("Talk with it", f"adjourn chat {app}")]
        if keep is None:
            lines.append(("Keep it", "adjourn demo --keep demo.db"))
        else:
            place = shlex.quote(safe(keep))
            lines += [
                ("What waits", f"adjourn inbox --store {place}"),
                ("Decide it", f"ADJOURN_DEMO_STORE={place} adjourn restart {left} --app {app}"),
            ]
        lines.append(
            ("The big demo", "make demo   (in a checkout of the repository: a real language model, on this machine)")
        )
        screen.pairs([(name, Text(line)) for name, line in lines])

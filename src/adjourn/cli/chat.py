"""`adjourn chat`: a conversation with an agent at a terminal, with the decisions it needs made in place."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from adjourn.agent import Agent
from adjourn.app import Adjourn
from adjourn.cli.chat_commands import COMMANDS, Asked, parse
from adjourn.cli.chat_input import Reader, reader_for
from adjourn.cli.chat_pauses import answer_here, decide_here
from adjourn.cli.commands import Group, Shell
from adjourn.cli.failures import INTERRUPTED, OK, TURN_FAILED, Left, Misuse
from adjourn.cli.finding import find_session
from adjourn.cli.picking import pick_session
from adjourn.cli.picks import Option, pick
from adjourn.cli.screen import safe
from adjourn.cli.transcript import show_messages
from adjourn.cli.view import TurnView, exit_code
from adjourn.cli.words import short
from adjourn.display import show_json
from adjourn.errors import AdjournError, InvalidRequest
from adjourn.handle import AgentInit, AgentTurn
from adjourn.session import AgentSession

AppArgument = Annotated[
    str,
    typer.Argument(
        help="module:attribute, as uvicorn takes it: an Adjourn, or a function that makes one.", metavar="APP"
    ),
]


@dataclass
class Wanted:
    """Which conversation."""

    agent: Annotated[str | None, typer.Option(help="Which agent, where there are several.", show_default=False)] = None
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", help="Go on with a stored session: its id, or ? to pick.", show_default=False),
    ] = None
    owner: Annotated[str | None, typer.Option(help="Whose session a new one is.", show_default=False)] = None
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Say this, and end when the turn rests.", show_default=False)
    ] = None


def add_to(group: Group) -> None:
    group.command("chat", about="app", panel="Running")(chat)


async def chat(shell: Shell, app: AppArgument, wanted: Wanted) -> int:
    """Talk with an agent. What it pauses on is decided in place; lines piped in are messages and /commands."""
    ai = shell.place.load(app)
    view = TurnView(shell.screen, ai, events=True)
    session, code = await _connect(shell, ai, view, wanted)
    talk = Chat(shell, ai, view, session)
    talk.code = code
    if wanted.message is not None:
        await talk.say(wanted.message)
    else:
        talk.greet(app)
        await talk.run()
    await talk.session.close()
    talk.part(app)
    return OK if shell.screen.interactive and wanted.message is None else talk.code


async def _connect(shell: Shell, ai: Adjourn, view: TurnView, wanted: Wanted) -> tuple[AgentSession, int]:
    if wanted.session is None:
        agent = await _agent(shell, ai, wanted.agent)
        return agent.connect(AgentInit(owner=wanted.owner)), OK
    if wanted.session == "?":
        row = await pick_session(shell, ai, "Which session?")
    else:
        row = await find_session(ai, wanted.session)
    agent = await _agent(shell, ai, row.agent)
    if agent.store is None:
        raise InvalidRequest(f"agent {agent.name!r} keeps no sessions, so none can be gone on with")
    code = OK
    left = await ai.inbox.go_on(agent.store, row.id)  # here, so that it is shown
    if left is not None:
        shell.screen.note("Going on with what was left unfinished …")
        code = exit_code(await view.follow(left))
    session = agent.connect(AgentInit(row.id))
    await session.load()
    shell.screen.say(f"Session {short(row.id)}, so far:", style="dim")
    show_messages(shell.screen, session.messages, last=6)
    return session, code


async def _agent(shell: Shell, ai: Adjourn, name: str | None) -> Agent:
    known = sorted(ai.agents)
    if name is not None:
        if name not in ai.agents:
            raise Misuse(
                f"there is no agent {name!r}; there are: {', '.join(safe(n, 60) for n in known) or 'none'}",
                kind="agent",
            )
        return ai.agents[name]
    if not known:
        raise Misuse("this application defines no agent; make one with ai.define_agent(…)", kind="agent")
    if len(known) == 1:
        return ai.agents[known[0]]
    if not shell.screen.interactive:
        raise Misuse(f"which agent? Give --agent, one of: {', '.join(safe(n, 60) for n in known)}", kind="agent")
    options = [Option(n, safe(n, 60), safe(ai.agents[n].description, 100)) for n in known]
    return ai.agents[await pick("Talk with which agent?", options)]


class Chat:
    """One conversation at a terminal or through a pipe. `code` is the exit code of the last turn."""

    def __init__(self, shell: Shell, ai: Adjourn, view: TurnView, session: AgentSession) -> None:
        self.shell = shell
        self.screen = shell.screen
        self.ai = ai
        self.view = view
        self.session = session
        self.code = OK
        self._later = False
        self._left = False
        self._commands: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
            "help": self._help,
            "history": self._history,
            "state": self._state,
            "fork": self._fork,
            "retry": self._retry,
            "pauses": self._pauses,
            "session": self._where,
            "quit": self._quit,
        }

    def greet(self, app: str) -> None:
        if not self.screen.interactive:
            return
        agent = self.session.agent
        self.screen.say(
            Text(safe(agent.name, 60), "bold cyan"),
            f" of {safe(app, 60)}. ",
            Text("/help lists what you can do.", "dim"),
        )
        if agent.store is None:
            self.screen.say("This agent has no store: nothing is kept when you leave.", style="yellow")

    def part(self, app: str) -> None:
        """Where to find the conversation again."""
        if self.session.agent.store is not None and self.session.snapshot_id is not None:
            self.screen.note(f"To go on: adjourn chat {safe(app, 200)} --session {safe(short(self.session.id), 200)}")

    async def run(self) -> None:
        """Until there is nothing more to read, or /quit."""
        reader = reader_for(self.screen, list(COMMANDS), self.session.messages)
        while not self._left:
            if self.session.interrupts and self.screen.interactive and not self._later:
                await self._guard(self._decide())
                continue
            line = await reader.read(bool(self.session.interrupts))
            if line is None:
                break
            if not line.strip():
                continue
            await self._line(line, reader)
            if self.code == INTERRUPTED and not self.screen.interactive:
                break  # Ctrl-C was meant for all of it

    async def _line(self, line: str, reader: Reader) -> None:
        self._later = self._later and bool(self.session.interrupts)
        await self._guard(self._said(line, reader))

    async def _said(self, line: str, reader: Reader) -> None:
        asked = parse(line)
        if asked is not None:
            await self._command(asked)
            return
        message = line.replace("//", "/", 1) if line.lstrip().startswith("//") else line
        reader.said(message)
        await self.say(message)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """A refused request is told, and the conversation goes on."""
        try:
            await work
        except (AdjournError, Misuse) as e:
            from adjourn.cli.commands import explain
            from adjourn.cli.failures import code_of

            explain(self.shell, e)
            self.code = code_of(e)
        except Left as e:
            self.screen.note(str(e))

    async def say(self, message: str) -> None:
        await self.follow(self.session.send(message))

    async def follow(self, turn: AgentTurn) -> None:
        outcome = await self.view.follow(turn)
        self._later = False
        self.code = exit_code(outcome)
        if self.code == TURN_FAILED and self.screen.interactive:
            self.screen.note("/retry tries again from here; what had finished is kept.")

    async def _decide(self) -> None:
        turn = await decide_here(self.screen, self.session)
        if turn is None:
            self._later = True
            self.screen.note("It waits. /pauses brings it back; what you type now is a message.")
        else:
            await self.follow(turn)

    async def _command(self, asked: Asked) -> None:
        if asked.name in self._commands:
            await self._commands[asked.name](asked.rest)
            return
        turn = await answer_here(self.screen, self.session, asked)
        if turn is not None:
            await self.follow(turn)

    # -- commands

    async def _help(self, _: str) -> None:
        self.screen.pairs([(f"/{c.name} {c.takes}".rstrip(), c.does) for c in COMMANDS.values()])

    async def _history(self, rest: str) -> None:
        last = int(rest) if rest.isdigit() else None
        self.screen.give({"event": "history", "messages": self.session.messages})
        show_messages(self.screen, self.session.messages, last=last)

    async def _state(self, _: str) -> None:
        state = self.session.client_state.custom
        names = [a.name for a in self.session.artifacts]
        self.screen.give({"event": "state", "state": state, "artifacts": names})
        self.screen.quote(show_json(state))
        if names:
            self.screen.say("Artifacts: " + ", ".join(safe(n or "without a name", 80) for n in names))

    async def _fork(self, rest: str) -> None:
        branch = await self.session.fork(rest or None)
        await self.session.close()
        self.session = await branch.load()
        self.screen.give({"event": "forked", "sessionId": branch.id, "snapshotId": branch.snapshot_id})
        self.screen.say(
            f"You are in a branch from {safe(rest or 'here', 60)} now; what came before is shared.", style="cyan"
        )

    async def _retry(self, _: str) -> None:
        end = self.session.last_end
        limits = self.session.agent.limits if end is not None and end.limit is not None else None
        await self.follow(self.session.retry(limits))

    async def _pauses(self, _: str) -> None:
        self._later = False
        if not self.session.interrupts:
            self.screen.say("Nothing waits for a decision.")
        elif not self.screen.interactive:
            await answer_here(self.screen, self.session, Asked("show", ""))

    async def _where(self, _: str) -> None:
        session = self.session
        facts = {
            "sessionId": session.id,
            "snapshotId": session.snapshot_id,
            "agent": session.agent.name,
            "owner": session.owner,
        }
        self.screen.give({"event": "session", **facts})
        self.screen.pairs([(name, safe(value or "none", 200)) for name, value in facts.items()])

    async def _quit(self, _: str) -> None:
        self._left = True

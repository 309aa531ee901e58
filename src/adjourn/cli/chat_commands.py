"""What can be typed in a chat beside messages: a word after a slash, and what belongs to it."""

from dataclasses import dataclass

from adjourn.cli.failures import Misuse


@dataclass(frozen=True)
class Command:
    name: str
    takes: str
    does: str


@dataclass(frozen=True)
class Asked:
    """A command as it was typed."""

    name: str
    rest: str


_ALL = [
    Command("help", "", "this list"),
    Command("approve", "[ID] [JSON]", "run the paused call as shown; JSON is the metadata it gets"),
    Command("edit", "[ID] [JSON]", "run it with another input"),
    Command("respond", "[ID] [JSON]", "give its result yourself; it does not run"),
    Command("decline", "[ID] [REASON]", "refuse it; the model is told why"),
    Command("show", "[ID]", "everything about what waits"),
    Command("pauses", "", "what waits, to decide it now"),
    Command("history", "[N]", "the conversation, or its last N messages"),
    Command("state", "", "the session's custom state and artifacts"),
    Command("fork", "[SNAPSHOT]", "branch off here, or at an earlier snapshot"),
    Command("retry", "", "go on after a failed or stopped turn"),
    Command("session", "", "the ids to find this conversation again"),
    Command("quit", "", "leave; what is stored stays"),
]
COMMANDS = {c.name: c for c in _ALL}
_ALSO = {"exit": "quit", "q": "quit", "restart": "approve", "?": "help", "h": "help"}


def parse(line: str) -> Asked | None:
    """The command that a line is; None where it is a message. Two slashes begin a message with one. Raises Misuse."""
    text = line.strip()
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, rest = text[1:].partition(" ")
    name = _ALSO.get(name, name)
    if name not in COMMANDS:
        near = [n for n in COMMANDS if name and n.startswith(name)]
        if len(near) != 1:
            raise Misuse(
                f"there is no command /{name}; /help lists them. (A message that begins with a slash needs two.)"
            )
        name = near[0]
    return Asked(name, rest.strip())

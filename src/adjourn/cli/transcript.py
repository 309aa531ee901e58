"""A conversation on a screen, message by message."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from adjourn.cli.screen import Screen, safe
from adjourn.display import summary
from adjourn.parts import Message, Part, encode


def show_messages(screen: Screen, messages: Sequence[Message], *, last: int | None = None) -> None:
    """The messages, or the last so many."""
    if screen.json:
        return
    shown: Sequence[Message] = messages if last is None else messages[max(len(messages) - last, 0) :]
    if len(shown) < len(messages):
        screen.say(f"… {len(messages) - len(shown)} earlier", style="dim")
    for message in shown:
        for part in message.content:
            _part(screen, message.role, part)


def _part(screen: Screen, role: str, part: Part) -> None:
    if part.text:
        mark = {"user": "> ", "system": "# "}.get(role, "  ")
        screen.quote(part.text, mark=mark, style="" if role == "model" else "bold" if role == "user" else "dim")
    elif part.reasoning:
        screen.quote(part.reasoning, mark="  ", style="dim italic")
    elif part.tool_request is not None:
        paused = bool((part.metadata or {}).get("interrupt"))
        mark = Text("‖ ", "yellow bold") if paused else Text("· ", "dim")
        screen.say(mark, summary(part.tool_request.name, part.tool_request.input, 160))
    elif part.tool_response is not None:
        bad = part.ours.get("outcome") is not None
        said = f"{safe(part.tool_response.name, 60)} → {safe(_text(part.tool_response.output), 160)}"
        screen.say(Text("✗ " if bad else "✓ ", "red" if bad else "green"), said)
    elif part.media is not None:
        screen.say(Text("◆ ", "cyan"), f"{safe(part.media.content_type or 'file', 60)} {safe(part.media.url, 80)}")
    elif part.data is not None:
        screen.say(Text("◆ ", "cyan"), safe(_text(part.data), 160))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()

"""Ready-made `prepare=` functions: ways to shorten what a model is sent. What is stored stays whole."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from adjourn.errors import DefinitionError
from adjourn.model import ModelRequest
from adjourn.parts import Message


def keep_recent(*, tokens: int | None = None, turns: int | None = None) -> Callable[[ModelRequest], ModelRequest]:
    """Sends only the newest `turns` turns, or as many whole turns as fit into about `tokens` tokens (4 bytes each).

    The system text always stays, and so does the turn that is under way, even where it alone is too long. A turn is sent
    whole or not at all: calls stay with their results, and signed reasoning with its calls.
    """
    if (tokens is None) == (turns is None):
        raise DefinitionError("keep_recent takes either tokens= or turns=")
    if (tokens or turns or 0) < 1:
        raise DefinitionError("keep_recent needs at least 1")

    def keep_recent(request: ModelRequest) -> ModelRequest:
        system = [m for m in request.messages if m.role == "system"]
        blocks = by_turn([m for m in request.messages if m.role != "system"])
        kept: list[list[Message]] = []
        size = 0
        for block in reversed(blocks):
            size += sum(len(msgspec.json.encode(m)) for m in block) // 4
            if kept and ((turns is not None and len(kept) >= turns) or (tokens is not None and size > tokens)):
                break
            kept.append(block)
        kept.reverse()
        return replace(request, messages=[*system, *[m for block in kept for m in block]])

    return keep_recent


def by_turn(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages in turns, each from a user message on. A correction note belongs to the turn it is in."""
    blocks: list[list[Message]] = []
    for message in messages:
        if not blocks or (message.role == "user" and not message.ours.get("correction")):
            blocks.append([])
        blocks[-1].append(message)
    return blocks

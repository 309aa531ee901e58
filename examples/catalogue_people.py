"""Who decides on the paused calls of the catalogue demo: the person at the terminal, or a stand-in with fixed rules."""

import json
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast

from adjourn import Answer, PausedCall
from adjourn.schema import Misfit
from adjourn.tool import Tool
from examples.catalogue_account import Account, call_words, clean
from examples.catalogue_records import Catalogue
from examples.catalogue_tools import ORDER_LIMIT


class Approver(Protocol):
    """Decides on a paused call; None leaves it paused."""

    name: str

    def decide(self, paused: PausedCall) -> Answer | None: ...


class StandIn:
    """Answers where nobody sits at the terminal (`--yes`). It knows no more than its rules, and says which one it used."""

    name = "the stand-in"

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def decide(self, paused: PausedCall) -> Answer | None:
        asked: Mapping[str, Any] = paused.input
        if paused.name == "merge_records":
            records = [self._catalogue.by_id(asked[key]) for key in ("keep", "drop")]
            if len({r["name"].strip().casefold() if r else None for r in records}) == 1:
                return paused.restart()
            return paused.decline("these records do not have the same name")
        if paused.name == "order_stock":
            product = self._catalogue.by_code(asked["code"])
            if product is not None and (most := int(ORDER_LIMIT // product["price"])):
                return paused.restart(replace_input={**asked, "quantity": min(most, asked["quantity"])})
        return paused.decline("only a person approves that")


class Person:
    """Asks at the terminal. `read` gets a prompt and returns a line, as `input` does."""

    name = "you"

    def __init__(
        self, account: Account, tools: Mapping[str, Tool[..., Any]], read: Callable[[str], str] | None = None
    ) -> None:
        self._account = account
        self._tools = tools
        self._read = read or input

    def decide(self, paused: PausedCall) -> Answer | None:
        self._account.say(f"      >> {call_words(paused.name, paused.input)}")
        while True:
            choice = self._line("      >> [a]pprove, [e]dit, [d]ecline, or leave it [p]aused? ").lower()
            if choice in ("a", "approve", "y", "yes"):
                return paused.restart()
            if choice in ("d", "decline", "n", "no"):
                return paused.decline(self._line("      >> Why? ") or "declined at the terminal")
            if choice in ("p", "paused"):
                return None
            if choice not in ("e", "edit"):
                self._account.say("      >> Type one of a, e, d and p, then Enter. Nothing runs until you do.")
            elif (edited := self._edit(paused)) is not None:
                return paused.restart(replace_input=edited)

    def _edit(self, paused: PausedCall) -> dict[str, Any] | None:
        given = cast(Mapping[str, Any], paused.input)
        edited: dict[str, Any] = {}
        for key, value in given.items():
            line = self._line(f"      >> {clean(key)} [{clean(str(value))}]: ")
            edited[key] = _value(line) if line else value
        try:
            self._tools[paused.name].shape.validate(edited)
        except Misfit as e:
            self._account.say(f"      >> That does not fit: {e}")
            return None
        return edited

    def _line(self, prompt: str) -> str:
        with _interruptible():
            try:
                return self._read(prompt).strip()
            except EOFError:
                return "p"


def _value(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


@contextmanager
def _interruptible() -> Generator[None]:
    """Lets Ctrl-C end the wait for a line: the event loop's own handler would only take note of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

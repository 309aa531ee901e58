"""A catalogue agent over a file of messy product records, with a real language model on this machine.

    python -m examples.catalogue                at a terminal: you approve, edit or decline what is over a limit
    python -m examples.catalogue --yes          a stand-in with fixed rules answers
    python -m examples.catalogue --scripted     the same with a deterministic model
    python -m examples.catalogue --data DIR     keeps its files in DIR (default: demo-output)

The first run copies the shipped records to DIR/products.json. Each run mends what is wrong in that file, one small turn a
fault: wrong calls go back to the model, what fails for a moment is tried again later, what is over a limit pauses for a
decision, malformed data is repaired and given as the tool's result, and what repeats itself is stopped by its bound.
"""

import argparse
import asyncio
import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adjourn import Adjourn, GenerateResponse, LimitReached, Limits, Message, MissingExtra, Model, TurnError
from adjourn.correction import first, retry, validate
from adjourn.plugins.local import Local
from examples.catalogue_account import Account, call_words
from examples.catalogue_people import Approver, Person, StandIn
from examples.catalogue_records import DATA, FILE, Catalogue, Fault, Record, compare, find_faults
from examples.catalogue_script import scripted_model
from examples.catalogue_tools import Job, Offer, add_tools, load_supplier, repair

LIMITS = Limits(model_calls=8, argument_errors=2, tool_errors=3, repeats=2, identical_calls=2)

NO_TERMINAL = """\
The demo asks you to approve, edit or decline changes, and there is no terminal to ask at.
Run it in a terminal, or let it answer by itself: python -m examples.catalogue --yes"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo. The exit code is 2 where it would have to ask and cannot, 1 where its file cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m examples.catalogue", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--yes", action="store_true", help="answer by itself, with fixed rules")
    parser.add_argument("--scripted", action="store_true", help="use a deterministic model instead of the real one")
    parser.add_argument(
        "--data", type=Path, default=Path("demo-output"), metavar="DIR", help="where its files are kept"
    )
    options = parser.parse_args(arguments)
    if not options.yes and not sys.stdin.isatty():
        print(NO_TERMINAL, file=sys.stderr)
        return 2
    try:
        demo = Demo(options.data, yes=options.yes, scripted=options.scripted)
    except (OSError, ValueError) as e:
        print(f"Cannot use {options.data / FILE}: {e}", file=sys.stderr)
        return 1
    try:
        asyncio.run(demo.run())
    except KeyboardInterrupt:
        print(f"\nStopped. What was saved in {options.data / FILE} stays saved; run it again to go on.")
        return 130
    except BrokenPipeError:  # whoever read the output has gone; the next run goes on from the file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


class Demo:
    """One run over the file."""

    def __init__(self, folder: Path, *, yes: bool, scripted: bool) -> None:
        self.folder = folder
        self.scripted = scripted
        self.account = Account(sys.stdout)
        self.catalogue, self.new = Catalogue.open(folder)
        self.ai = Adjourn(plugins=[Local()], limits=LIMITS, observers=[self.account.watch])
        add_tools(self.ai, self.catalogue, load_supplier((DATA / "supplier.json").read_text(encoding="utf-8")))
        decider: Approver = StandIn(self.catalogue) if yes else Person(self.account, self.ai.tools)
        self.decider = decider
        approve = self.account.watched(decider.name, decider.decide)
        # The supplier's pauses are for code to decide: it waits and asks again, or repairs what came.
        supplier = first(retry(max=5, base=0.3), validate(Offer, fix=repair))
        self.handlers = {"*": approve, "ask_supplier": self.account.watched("the program", supplier)}

    async def run(self) -> None:
        account, catalogue = self.account, self.catalogue
        model = await self._model()
        source = "a copy of the shipped records, made now" if self.new else "as the last run left it"
        account.say(f"File:    {catalogue.path} ({source})")
        account.say(f"Answers: {self._answers()}")
        before = copy.deepcopy(catalogue.records)
        faults = find_faults(before)
        right = _right(before, faults)
        account.say()
        account.say(f"{len(before)} records: {len(right)} already right, {len(faults)} things to mend.")
        if right:
            account.say(f"Already right: {', '.join(right)}")
        mended = 0
        for number, fault in enumerate(faults, 1):
            account.about = fault.title.split()[0]
            account.say()
            account.say(f"{number:>3}/{len(faults)} {fault.title}: {fault.text}")
            mended += await self._mend(fault, model)
        self._report(before, right, f"{mended} of {len(faults)} mended")

    async def _model(self) -> Model:
        """The model, and a line on the screen that says which one it is."""
        if not self.scripted:
            needle = Local().model("needle")
            self.account.say("Model:   local/needle, a real one, on this machine. Loading it ...")
            try:
                await needle.load()
            except MissingExtra as e:
                self.account.say(f"         It cannot be loaded here: {e}")
            else:
                return needle
        self.account.say(
            "Model:   scripted. It plays back what the real one once said; nothing here is a model's work."
        )
        return scripted_model()

    def _answers(self) -> str:
        if isinstance(self.decider, Person):
            return "you approve, edit or decline what is over a limit"
        return "a stand-in with fixed rules (--yes): merges twins, cuts orders down to the limit, declines the rest"

    async def _mend(self, fault: Fault, model: Model) -> bool:
        """One job: its prompts, one after the other, in one conversation. Says whether the fault is gone."""
        account = self.account
        messages: list[Message] = []
        problem = ""
        for prompt in fault.prompts:
            try:
                response: GenerateResponse[Any] = await self.ai.generate(
                    prompt,
                    messages=messages,
                    model=model,
                    tools=fault.tools,
                    on_interrupt=self.handlers,
                    prepare=account.show_results,
                    context=Job(fault.about),
                )
            except LimitReached as e:
                messages = e.response.messages
                problem = f"stopped by its bound {e.limit!r}: {e}"
                account.stops.append(f"{account.about}: {e.limit}: {e}")
            except TurnError as e:
                messages = e.response.messages
                problem = str(e)
            else:
                messages = response.messages
                if response.interrupts:
                    problem = "left waiting for a decision"
                elif note := _note(response):
                    account.event("said", note)
            if problem:
                account.event("ended", problem)
                break
        account.note_corrections(messages)
        done = not any((f.kind, f.key) == (fault.kind, fault.key) for f in find_faults(self.catalogue.records))
        account.event("result", "mended" if done else "not mended")
        return done

    def _report(self, before: Sequence[Record], right: Sequence[str], outcome: str) -> None:
        account = self.account
        left = find_faults(self.catalogue.records)
        account.say()
        account.say("=" * 24 + " Account " + "=" * 24)
        account.section("Records before and after", compare(before, self.catalogue.records))
        account.section("Already right before", right)
        account.section("Still wrong", [f"{f.title}: {f.text}" for f in left])
        account.section("Pauses and decisions", account.pauses)
        account.section("Corrections (a wrong call, what the model was told, what it did then)", account.corrections)
        account.section("Stopped by a bound", account.stops)
        account.say()
        account.say(f"{outcome}; {account.time()}.")
        path = self.folder / "account.txt"
        account.say(f"The records are in {self.catalogue.path}, this account is in {path}.")
        account.say(f"Run it again to see what is right now; delete {self.folder} to begin anew.")
        path.write_text("\n".join(account.lines) + "\n", encoding="utf-8")


def _right(records: Sequence[Record], faults: Sequence[Fault]) -> list[str]:
    wrong = {key for fault in faults for key in fault.about}
    return [f"{r['code']} {r['name'].strip()}" for r in records if wrong.isdisjoint((r["id"], r["code"]))]


def _note(response: GenerateResponse[Any]) -> str:
    """What the model itself said at the end."""
    message = response.message
    kept: dict[str, Any] = dict((message.metadata or {}).get("needle") or {}) if message is not None else {}
    withheld: Sequence[dict[str, Any]] = kept.get("suppressed_calls") or ()
    if withheld:
        calls = ", ".join(call_words(c["name"], c["arguments"]) for c in withheld)
        return f"nothing; it withheld what it was not sure of: {calls}"
    return str(kept.get("reasoning") or response.text)


if __name__ == "__main__":
    sys.exit(main())

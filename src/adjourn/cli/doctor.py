"""`adjourn doctor`: looks at a store and an application, says what is wrong, and repairs what is safe to, after asking."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from adjourn.app import Adjourn
from adjourn.cli.checks import Examination, Finding, brief, check_file, examine_app
from adjourn.cli.commands import Group, Shell
from adjourn.cli.failures import PROBLEMS, Left
from adjourn.cli.picks import confirm
from adjourn.cli.place import Place, sqlite_path
from adjourn.cli.screen import safe
from adjourn.cli.words import many
from adjourn.errors import StoreError

_MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red bold")}


def add_to(group: Group) -> None:
    group.command("doctor", panel="Sessions")(doctor)


async def doctor(
    shell: Shell,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Repair what is safe to repair, without asking.")] = False,
) -> int:
    """Look for what is wrong with a store and an application; repair what is safe to, after asking."""
    findings: list[Finding] = []
    opened = _open(shell.place)
    if isinstance(opened, Finding):
        findings.append(opened)
        _show(shell, findings)
    else:
        fresh = await _look(shell.place, opened)
        while fresh:  # a repair may bring to light what lay below it: a lease that ends leaves a turn in the middle
            findings += fresh
            _show(shell, fresh)
            repaired = [await _repair(shell, f) for f in fresh if f.repair is not None and await _may(shell, f, yes)]
            fresh = _new(await _look(shell.place, opened), findings) if repaired else []
    left = [f for f in findings if f.level == "problem" and not f.repaired]
    shell.screen.give({"ok": not left, "findings": [finding_facts(f) for f in findings]})
    _sum_up(shell, findings, left, yes)
    return PROBLEMS if left else 0


def finding_facts(finding: Finding) -> dict[str, Any]:
    """One finding as `--json` prints it."""
    return {
        "check": finding.check,
        "level": finding.level,
        "message": finding.text,
        "hint": finding.hint,
        "ids": finding.ids,
        "repair": finding.repair.what if finding.repair is not None else None,
        "repaired": finding.repaired,
    }


def _open(place: Place) -> Adjourn | Finding:
    try:
        return place.open()
    except StoreError as e:
        return Finding("store.open", "problem", str(e))


def _new(found: Sequence[Finding], before: Sequence[Finding]) -> list[Finding]:
    """What is wrong now and was not before. What is left of something that was told is not told again."""
    known = {(f.check, i) for f in before for i in f.ids}
    return [f for f in found if f.level != "ok" and f.ids and not all((f.check, i) in known for i in f.ids)]


async def _look(place: Place, ai: Adjourn) -> list[Finding]:
    out: list[Finding] = []
    if place.app is None and place.store is not None and not place.store.startswith("postgres"):
        out.append(check_file(sqlite_path(place.store)))
    if place.app is None and place.store is not None and place.store.startswith("postgres"):
        out += await _server_clock(place.store)
    examined: list[Examination] = []
    for store in ai.stores():
        one = Examination(ai, store, runs=place.runs)
        try:
            out += await one.findings()
            examined.append(one)
        except StoreError as e:
            out.append(Finding("store.use", "problem", f"{store!r}: {e}"))
    if place.runs:
        out += _app(ai, examined)
    return out


def _app(ai: Adjourn, examined: Sequence[Examination]) -> list[Finding]:
    out = examine_app(ai, examined)
    if not ai.stores():
        out.append(Finding("app.stores", "note", "no agent has a store, so nothing outlives the process"))
    return out


async def _server_clock(dsn: str) -> list[Finding]:
    from adjourn.cli.server_clock import offset
    from adjourn.cli.words import span

    seconds = await offset(dsn)
    if seconds is None:
        return []
    if abs(seconds) > 5:
        text = f"the database server's clock is {span(abs(seconds))} {'ahead' if seconds > 0 else 'behind'}"
        return [
            Finding("clock.server", "note", text, [], "Leases go by the clocks of the workers; keep all of them set")
        ]
    return [Finding("clock.server", "ok", f"the database server's clock differs by {abs(seconds) * 1000:.0f} ms")]


def _show(shell: Shell, findings: Sequence[Finding]) -> None:
    for finding in findings:
        mark, style = _MARKS[finding.level]
        shell.screen.say(Text(f"{mark} ", style), safe(finding.text, 2000))
        if finding.ids:
            shell.screen.say(Text(f"  {brief(finding)}", "dim"))
        if finding.hint:
            shell.screen.say(Text(f"  {safe(finding.hint, 2000)}.", "dim"))


async def _may(shell: Shell, finding: Finding, yes: bool) -> bool:
    assert finding.repair is not None
    if yes:
        return True
    if not shell.screen.interactive:
        return False
    runs = " Models are called and tools run." if finding.repair.runs else ""
    try:
        return await confirm(f"{finding.check}: {finding.repair.what}?{runs}")
    except Left:
        return False


async def _repair(shell: Shell, finding: Finding) -> None:
    assert finding.repair is not None
    count = await finding.repair.apply()
    # Turns may fail to go on; what else there is to repair was either put right here or by somebody else meanwhile.
    finding.repaired = count >= len(finding.ids) or not finding.repair.runs
    mark = Text("✓ ", "green") if finding.repaired else Text("✗ ", "red")
    shell.screen.say(mark, f"{finding.check}: {finding.repair.what}: {count:,} of {len(finding.ids):,}")


def _sum_up(shell: Shell, findings: Sequence[Finding], left: Sequence[Finding], yes: bool) -> None:
    screen = shell.screen
    if not left:
        screen.say(
            "Nothing is wrong." if not any(f.repaired for f in findings) else "Nothing is wrong any more.",
            style="green",
        )
        return
    screen.say(f"{many(len(left), 'problem')} left.", style="red")
    if any(f.repair is not None for f in left) and not yes and not screen.interactive:
        screen.note("Some can be repaired: the same with --yes does it.")

"""What the pages say: what is asked, what each button will do, and what was decided, in words."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from adjourn.display import one_line
from adjourn.store import Decision, InterruptRecord

STATUS: dict[str, str] = {"open": "Waiting", "resolved": "Decided", "expired": "Expired", "cancelled": "Cancelled"}
REASONS: dict[str, str] = {
    "error": "Failed",
    "outcome_unknown": "Outcome unknown",
    "unanswered": "Never answered",
}
DONE: dict[str, str] = {
    "respond": "responded",
    "restart": "approved",
    "decline": "declined",
    "expire": "expired",
    "cancel": "cancelled",
    "reopen": "reopened",
    "late_result": "late result",
}


class Action(msgspec.Struct, frozen=True):
    """One thing that can be done: its button, and what pressing it does. `warning` is what may go wrong."""

    verb: Literal["respond", "restart", "decline"]
    label: str
    says: str
    warning: str = ""


def asks(record: InterruptRecord) -> tuple[str, str]:
    """What is asked, as the text before and after the tool's name."""
    agent = one_line(record.agent, 60)
    if record.status != "open":
        return (f"{agent} asked:", "") if "restart" not in record.allow else (f"{agent} wanted to run", "")
    if record.reason == "error":
        return "", f"failed when {agent} ran it"
    if record.reason == "outcome_unknown":
        return "Did", "run? It was cut off"
    if "restart" not in record.allow:
        return f"{agent} asks you:", ""
    return f"{agent} wants to run", ""


def why(record: InterruptRecord) -> str:
    """Why it waits, in a sentence; empty where the tool's own words say so."""
    if record.status != "open":
        return ""
    tool = one_line(record.tool, 60)
    return {
        "approval": f"{tool} runs only after somebody approved it. It has not run.",
        "error": f"{tool} raised an error. What it did before that is not undone.",
        "outcome_unknown": f"The process ended while {tool} was running. Whether it took effect is not known.",
        "unanswered": f"{tool} was asked for and never answered.",
    }.get(record.reason, "")


def actions(record: InterruptRecord, runs_here: bool) -> list[Action]:
    """What can be done with an open interrupt, the likeliest first."""
    tool = one_line(record.tool, 60)
    goes_on = (
        "The agent goes on at once." if runs_here else "The agent goes on as soon as a process that has it takes it up."
    )
    at_once = "at once" if runs_here else "as soon as a process that has it takes it up"
    restart = {
        "error": Action("restart", "Try again", f"Runs {tool} again with the input shown. {goes_on}"),
        "outcome_unknown": Action(
            "restart",
            "Run it again",
            f"Runs {tool} once more with the input shown. {goes_on}",
            "If the first run did take effect, it then happened twice.",
        ),
    }.get(record.reason, Action("restart", "Approve", f"Runs {tool} with exactly the input shown. {goes_on}"))
    if "restart" not in record.allow:
        respond = Action("respond", "Send answer", f"The agent gets your answer and goes on with it {at_once}.")
    elif record.reason == "outcome_unknown":
        respond = Action(
            "respond",
            "Say what came of it",
            f"{tool} does not run again. The agent takes what you write as its result.",
        )
    else:
        respond = Action(
            "respond", "Respond instead", f"{tool} does not run. The agent takes what you write as its result."
        )
    decline = Action("decline", "Decline", f"{tool} does not run. The agent is told that you refused, and why.")
    allowed = [a for a in (restart, respond) if a.verb in record.allow]
    if record.response is not None and record.reason == "tool" and "restart" in record.allow:
        allowed.reverse()  # it says what it wants to hear
        allowed = [replace(a, label="Send answer") if a.verb == "respond" else a for a in allowed]
    return [*allowed, decline]


def outcome(record: InterruptRecord, decision: Decision | None, you: str) -> str:
    """What became of it, in a sentence without the time."""
    tool = one_line(record.tool, 60)
    if decision is None:
        return "Nobody has decided yet." if record.status == "open" else f"This is {STATUS[record.status].lower()}."
    who = "You" if decision.by == you else one_line(decision.by or "Somebody", 80)
    if decision.verb == "restart":
        edited = decision.input is not msgspec.UNSET
        return f"{who} approved it{' with an edited input' if edited else ''}."
    if decision.verb == "respond":
        return f"{who} answered it; {tool} did not run."
    if decision.verb == "decline":
        return f"{who} declined it; {tool} did not run."
    if decision.verb == "expire":
        return "Nobody decided in time."
    if decision.verb == "cancel":
        return "It was cancelled before anybody decided."
    return f"{who}: {DONE.get(decision.verb, decision.verb)}."


def on_expiry(record: InterruptRecord) -> str:
    """What happens to the call when nobody decides in time."""
    given: Any = record.on_expiry
    if given == "decline":
        return "The agent is told that nobody decided in time, which is neither an approval nor a refusal."
    if given == "fail":
        return "The turn fails; it can be retried."
    return "The agent gets the result that was set for this case."


def says_more(record: InterruptRecord) -> bool:
    """Whether the payload tells anything that the input does not."""
    payload: Any = record.payload
    if payload is None or payload == record.input:
        return False
    return payload != {"approval": record.tool, "input": record.input}


def settling(history: Sequence[Decision]) -> Decision | None:
    """The decision that settled it, out of its audit; None while it is open."""
    for decision in reversed(history):
        if decision.verb == "reopen":
            return None
        if decision.verb != "late_result":
            return decision
    return None

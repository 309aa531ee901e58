"""The scenarios of the crash matrix: what is said and decided in each, and what must have come of it wherever it was killed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

LEASE = 0.2
TASKS = {"buyer": "buy", "broker": "fetch"}
"""What each nested agent is told to do."""
IDEMPOTENT = "sure"
APPROVED = ("gate", "flaky", "twice")
"""The tools that have no effect before somebody restarts them."""

Verb = Literal["restart", "replace", "respond", "decline"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Where nothing is said of it, one process says `go` and decides until the session is over, and is the one killed.

    `script`: the calls that a model asks for, by what it was told; `gate0` is the tool `gate` with the number 0.
    """

    script: Mapping[str, Sequence[str]]
    effects: Mapping[str, int]
    """How often each call has its effect where nothing is killed."""
    unknown: int
    """How many runs at most can have been cut off, and come back as a question."""
    fewer: bool = False
    """Effects may be fewer after a kill: a branch is not made, or what would have failed is known to be done."""
    points: int = 7
    """How many kill points there are at least."""
    messages: Sequence[str] = ("go",)
    answers: Sequence[Verb] = ("restart",)
    """The decision on a call that had no effect yet, on one that failed after its first, and so on."""
    retries: bool = False
    """A turn that failed is retried, although its pause waits for another decision as well."""
    tool_fails: int = 1
    """How often the tool that fails does so, each time after its effect."""
    model_fails: Sequence[str] = ()
    """Where a model fails once: what it was told, and whose message was the last."""
    model_waits: bool = False
    """As a real one does: what was said is committed meanwhile."""
    on_expiry: Any = None
    first_output: str = ""
    """What is in the output of the first call."""
    lease: float = LEASE
    before: Sequence[str] = ()
    """Steps of a process that ends well before the other one begins."""
    steps: Sequence[str] = ("ask", "finish")
    """Steps of the process that is killed."""
    beside: Sequence[str] = ()
    """Steps of a process that lives on beside the one that is killed, and finishes; else a fresh one does."""

    @property
    def one_by_one(self) -> bool:
        """Whether no two calls run at the same time, and none runs again that was not paused."""
        return all(len(calls) == 1 for calls in self.script.values()) and not (self.fewer or self.model_fails)


def nested(inner: str, effects: Mapping[str, int], unknown: int = 1, **options: Any) -> Scenario:
    script: dict[str, Sequence[str]] = {"go": ["buyer"], "buy": inner.split()}
    return Scenario(script=script, effects=effects, unknown=unknown, first_output="done", **options)


def nested_failed(*answers: Verb, effects: Mapping[str, int], **options: Any) -> Scenario:
    """The tool inside fails after its effect; the second decision is another one."""
    return nested("flaky0", effects, 2, fewer=True, answers=answers, **options)


def queued(**options: Any) -> Scenario:
    """Two messages are sent while the first turn is paused; each has a tool to run in a turn of its own."""
    script = {"go": ["gate0"], "second": ["work1"], "third": ["work2"]}
    effects = {"gate0": 1, "work1": 1, "work2": 1}
    return Scenario(script=script, messages=[*script], effects=effects, unknown=3, **options)


def expired(on_expiry: Any, first_output: str, **options: Any) -> Scenario:
    script = {"go": ["brief0", "work1"]}
    given: dict[str, Any] = {"steps": ("ask", "sweep", "finish"), **options}
    return Scenario(
        script=script, effects={"work1": 1}, unknown=2, on_expiry=on_expiry, first_output=first_output, **given
    )


NOBODY = {"respond": "nobody came"}
TWO_GATES: Mapping[str, Any] = {"script": {"go": ["gate0", "gate1"]}, "effects": {"gate0": 1, "gate1": 1}, "unknown": 2}
SCENARIOS: Mapping[str, Scenario] = {
    "plain": Scenario(script={"go": ["work0"]}, effects={"work0": 1}, unknown=1, points=6),
    "parallel": Scenario(
        script={"go": ["work0", "work1", "sure2"]}, effects={"work0": 1, "work1": 1, "sure2": 1}, unknown=2
    ),
    "restart": Scenario(script={"go": ["gate0"]}, effects={"gate0": 1}, unknown=1),
    "respond": Scenario(script={"go": ["gate0", "work1"]}, answers=["respond"], effects={"work1": 1}, unknown=2),
    "decline": Scenario(
        script={"go": ["gate0", "work1"]}, answers=["decline"], effects={"work1": 1}, unknown=2, first_output="declined"
    ),
    "twice": Scenario(script={"go": ["twice0"]}, effects={"twice0": 1}, unknown=1),
    "partial": Scenario(**TWO_GATES),
    "partial_after_another": Scenario(**TWO_GATES, before=("ask", "decide_last"), steps=("finish",)),
    "partial_before_another": Scenario(**TWO_GATES, before=("ask",), steps=("decide_first",)),
    "model_failed": Scenario(
        script={"go": ["work0"]}, effects={"work0": 1}, unknown=1, model_fails=["go:user", "go:tool"]
    ),
    "fork": Scenario(
        script={"go": ["gate0"]}, effects={"gate0": 2}, unknown=2, fewer=True, steps=("ask", "fork", "finish")
    ),
    "expire": expired(NOBODY, "nobody came"),
    "expire_declines": expired("decline", "expired"),
    "expire_elsewhere": expired(NOBODY, "nobody came", before=("ask",), steps=("sweep_and_drive",)),
    "nested": nested("gate0", {"gate0": 1}),
    "nested_fork": nested("gate0", {"gate0": 2}, 2, fewer=True, steps=("ask", "fork", "finish")),
    "nested_expire": nested("brief0 work1", {"work1": 1}, 2, on_expiry=NOBODY, steps=("ask", "sweep", "finish")),
    "nested_failed_restart": nested_failed("restart", "restart", effects={"flaky0": 2}),
    "nested_failed_replace": nested_failed("restart", "replace", effects={"flaky0": 1, "flaky1": 1}),
    "nested_failed_respond": nested_failed("restart", "respond", effects={"flaky0": 1}),
    "nested_failed_decline": nested_failed("restart", "decline", effects={"flaky0": 1}),
    # It fails again when it is retried: that has happened to whoever takes over, and is no reason for a retry of its own.
    "nested_failed_retry": nested_failed("restart", effects={"flaky0": 3}, retries=True, tool_fails=2),
    "nested_twice": nested("twice0", {"twice0": 1}),
    "nested_model_failed": nested("gate0", {"gate0": 1}, model_fails=["buy:tool"]),
    "deep_failed_restart": Scenario(
        script={"go": ["buyer"], "buy": ["broker"], "fetch": ["flaky0"]},
        effects={"flaky0": 2},
        unknown=2,
        fewer=True,
        first_output="done",
    ),
    "queue": queued(steps=("ask", "queue", "finish")),
    "queue_decided": queued(before=("ask", "queue"), steps=("finish",), model_waits=True),
    "queue_sent": queued(before=("ask",), steps=("queue",), points=4),
    "queue_followed": queued(beside=("ask", "queue", "follow"), steps=("finish",), lease=0.6),
    "waiting": Scenario(script={"go": ["sure0"]}, effects={"sure0": 1}, unknown=0, model_waits=True),
    "nested_waiting": nested("work0", {"work0": 1}, model_waits=True),
}

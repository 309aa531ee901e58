"""How observing works: ids around what runs, and observers that cannot do harm."""

from typing import Any

import pytest

from adjourn import (
    Adjourn,
    AgentInit,
    MemoryStore,
)
from adjourn.observe import Observed, Watched, around, by_kind, notify_here
from adjourn.testing import ScriptedModel, call
from observe.observe_kit import EVENTS, Recorder, eventful, pay_app


async def test_without_observers_there_is_nothing_around_and_nobody_is_told() -> None:
    here: list[Any] = []
    ai = Adjourn(model=ScriptedModel([call("look", {}), "done"]))

    @ai.tool()
    async def look() -> str:
        here.append(dict(around()))
        notify_here("retry", "x", {"of": "tool"})
        return "seen"

    await ai.define_agent("a", store=MemoryStore()).connect().send("go").output
    assert here == [{}]


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
async def test_a_tools_body_has_the_ids_around_it(threaded: bool) -> None:
    here: list[dict[str, Any]] = []
    ai = Adjourn(observers=[lambda _: None], model=ScriptedModel([call("look", {}), "done"]))

    async def body() -> str:
        here.append(dict(around()))
        return "seen"

    def sync_body() -> str:
        here.append(dict(around()))
        return "seen"

    ai.tool(name="look")(sync_body if threaded else body)
    output = await ai.define_agent("a", store=MemoryStore()).connect(AgentInit(session_id="s")).send("go").output
    [ids] = here
    assert ids == ids | {"agent": "a", "session_id": "s", "tool": "look", "snapshot_id": output.snapshot_id}
    assert ids["call_id"].startswith("c_")
    assert dict(around()) == {}


async def test_an_observer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def bad(step: Observed) -> None:
        raise RuntimeError(f"bad at {step.kind}")

    seen = Recorder()
    ai, agent = pay_app([bad, seen], EVENTS)
    await eventful(ai, agent)
    assert {"turn", "model", "tool", "pause", "decision"} <= set(seen.kinds())
    assert "an observer failed" in caplog.text


def test_a_step_hands_its_ids_on_and_takes_them_back() -> None:
    seen = Recorder()
    with Watched([seen], Observed("turn", "a", {"agent": "a", "turn_id": "t", "resumed": False})):
        with Watched([seen], Observed("tool", "x", {"tool": "x", "call_id": "c", "attempt": 1})) as step:
            assert step.facts == {"agent": "a", "turn_id": "t", "tool": "x", "call_id": "c", "attempt": 1}
            assert dict(around()) == {"agent": "a", "turn_id": "t", "tool": "x", "call_id": "c"}
        assert dict(around()) == {"agent": "a", "turn_id": "t"}
    assert dict(around()) == {}


@pytest.mark.parametrize(
    "by, kind",
    [
        (None, "unnamed"),
        ("", "unnamed"),
        ("ann@example.org", "person"),
        ("handler:retry", "handler"),
        ("handler", "person"),
        ("outer:i_1", "outer"),
        ("message", "message"),
        ("someone:else", "person"),
    ],
)
def test_a_decider_is_told_by_kind_only(by: str | None, kind: str) -> None:
    assert by_kind(by) == kind

"""Genkit's own clients, Python and JavaScript, unchanged, against a real server of ours over loopback.

Each client runs all its steps once, in a process and an environment of its own (`scripts/web_clients.py` installs both),
against an application whose sessions are in a SQLite file. The tests look at what each step gave.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adjourn import run_sync
from adjourn.stores.sqlite import SQLiteStore
from server.wire_kit import TOKENS, Clerk, serving

pytestmark = [pytest.mark.xdist_group("genkit_clients"), pytest.mark.slow]

HERE = Path(__file__).parent
PLACE = HERE.parent.parent / ".genkit"
Steps = Mapping[str, Any]
GUESTS = ("guest", "guestTools")
"""Steps with an agent that keeps nothing. The Python client takes no state that is signed, and the server no other."""


def command(client: str) -> tuple[list[str], Path]:
    """How to start a client, and in which folder. Skips where it is not installed."""
    note = PLACE / "installed.json"
    known: dict[str, str] = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if f"{client}-client" not in known:
        pytest.skip(
            f"NOT TESTED AGAINST GENKIT'S {client.upper()} CLIENT: it is not installed; run scripts/web_clients.py"
        )
    if client == "node":
        return [known["node"], "--input-type=module", "-"], PLACE / "node"
    return [known["python"], str(HERE / "genkit_client.py")], PLACE


class Ran:
    """What the steps of a client gave, and what they did to the application."""

    def __init__(self, client: str, steps: Steps, clerk: Clerk) -> None:
        self.client = client
        self.steps = steps
        self.clerk = clerk


@pytest.fixture(scope="module", params=["python", "node"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    arguments, folder = command(request.param)
    store = SQLiteStore(tmp_path_factory.mktemp("genkit") / "sessions.db")
    clerk = Clerk(store)
    with serving(clerk.ai) as server:
        done = subprocess.run(
            [*arguments, f"{server.url}/genkit", TOKENS["ann"]],
            cwd=folder,
            input=(HERE / "genkit_client.mjs").read_text(encoding="utf-8") if request.param == "node" else "",
            capture_output=True,
            encoding="utf-8",
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    yield Ran(request.param, json.loads(done.stdout.splitlines()[-1]), clerk)
    store.close()


def said(text: str) -> dict[str, Any]:
    return {"text": text, "finishReason": "stop", "hasSnapshot": True, "interrupts": []}


def paused(*amounts: int, refs: tuple[str, ...] = ("r0",)) -> dict[str, Any]:
    interrupts = [{"name": "pay", "ref": r, "input": {"amount": a}} for a, r in zip(amounts, refs, strict=True)]
    return {"text": "", "finishReason": "interrupted", "hasSnapshot": True, "interrupts": interrupts}


def test_every_step_ran_to_its_end(ran: Ran) -> None:
    assert len(ran.steps) >= 24
    unfit = GUESTS if ran.client == "python" else ()
    assert {
        n: s["thrown"] for n, s in ran.steps.items() if isinstance(s, dict) and "thrown" in s and n not in unfit
    } == {}


def test_a_message_gets_its_reply(ran: Ran) -> None:
    assert ran.steps["send"] == {**said("you said hello"), "sessionId": ran.steps["send"]["sessionId"]}
    assert ran.steps["send"]["sessionId"] in ("str", "string")


def test_text_streams_word_by_word(ran: Ran) -> None:
    stream = ran.steps["stream"]
    assert stream["texts"] == ["you ", "said ", "one ", "two ", "three "]
    assert stream["last"] == "you said one two three "
    assert stream["end"] == said("you said one two three")


def test_a_pause_is_answered_with_a_result_and_the_tool_does_not_run(ran: Ran) -> None:
    step = ran.steps["respond"]
    assert step["paused"] == paused(5)
    assert step["ended"] == said("done: {'paid': 'by hand'}")
    assert 5 not in ran.clerk.paid


def test_the_clients_history_is_a_whole_conversation(ran: Ran) -> None:
    if ran.client == "python":
        assert ran.steps["respond"]["roles"] == ["user", "model", "tool", "model"]
    else:  # this client keeps only final messages of a stored session
        assert ran.steps["respond"]["count"] == 3


def test_falsy_answers_are_answers(ran: Ran) -> None:
    assert ran.steps["respondFalsy"] == ["done: 0", "done: False", "done: ", "done: None"]


def test_a_restarted_tool_runs_with_what_the_client_gave_along(ran: Ran) -> None:
    assert ran.steps["restart"] == said("done: {'paid': 6, 'note': {}}")
    assert ran.steps["restartWithMetadata"] == said("done: {'paid': 7, 'note': {'approved': True}}")
    assert ran.clerk.paid.count(6) == ran.clerk.paid.count(7) == 1


def test_an_edited_input_that_says_so_is_run(ran: Ran) -> None:
    if ran.client == "node":
        assert "replacedInput" not in ran.steps  # that client cannot
    else:
        assert ran.steps["replacedInput"] == said("done: {'paid': 50, 'note': {}}")
        assert 50 in ran.clerk.paid
    assert 500 not in ran.clerk.paid


def test_a_restarted_tool_may_pause_again(ran: Ran) -> None:
    assert ran.steps["pausesAgain"] == [paused(13), paused(13), said("done: {'paid': 13, 'note': {}}")]
    assert ran.clerk.paid.count(13) == 1


def test_two_pauses_are_answered_one_by_one(ran: Ran) -> None:
    both, one, none = ran.steps["partialAnswers"]
    assert both == paused(8, 9, refs=("r0", "r2"))
    assert one == paused(8)
    assert none == said("done: ['first', 'second']")


def test_a_pause_shows_in_the_stream_with_its_payload(ran: Ran) -> None:
    assert ran.steps["pauseInTheStream"] == [["pay", {"amount": 5, "asked": 0}]]


def test_a_paused_session_is_resumed_by_its_snapshot(ran: Ran) -> None:
    assert ran.steps["resumeBySnapshot"] == said("done: from afar")


def test_a_session_is_resumed_by_the_id_that_the_client_chose(ran: Ran) -> None:
    step = ran.steps["resumeBySession"]
    assert step["first"] == step["second"] == ("chosen-by-js" if ran.client == "node" else "chosen-by-python")
    assert step["messages"] == ["user", "model", "user", "model"]


def test_a_forged_input_is_refused_and_the_pause_is_kept(ran: Ran) -> None:
    refused = ran.steps["forged"]["refused"]
    assert (refused["kind"], refused["status"]) == ("AgentError", "INVALID_ARGUMENT")
    assert "modified inputs" in refused["message"]
    assert ran.steps["forged"]["ended"] == said("done: still open")
    assert 5000 not in ran.clerk.paid


def test_a_second_answer_is_refused_and_names_the_first(ran: Ran) -> None:
    assert (ran.steps["twice"]["kind"], ran.steps["twice"]["status"]) == ("AgentError", "ABORTED")
    assert "already answered by ann (respond)" in ran.steps["twice"]["message"]


def test_a_message_to_a_paused_session_is_refused(ran: Ran) -> None:
    refused = ran.steps["messageWhilePaused"]
    assert (refused["kind"], refused["status"]) == ("AgentError", "FAILED_PRECONDITION")
    assert "waits for a decision on: pay" in refused["message"]


def test_a_background_turn_is_aborted(ran: Ran) -> None:
    step = ran.steps["abort"]
    assert (step["before"], step["status"], step["again"]) == ("pending", "aborted", "aborted")
    assert step["missing"] is None


def test_a_background_turn_that_paused_is_answered_later(ran: Ran) -> None:
    assert ran.steps["detachedPause"] == {"reason": "interrupted", "ended": said("done: later")}


def test_a_snapshot_that_never_was_is_none(ran: Ran) -> None:
    assert ran.steps["missingSnapshot"]["snapshot"] is None
    assert "n_none" in ran.steps["missingSnapshot"]["failed"]["message"]


def test_a_client_that_goes_away_at_the_pause_changes_nothing(ran: Ran) -> None:
    assert ran.steps["goesAway"]["there"] == "interrupted"
    page = run_sync(ran.clerk.ai.inbox.list(session_id="left-by-js" if ran.client == "node" else "left-by-python"))
    assert [(r.tool, r.input) for r in page.items] == [("pay", {"amount": 12})]


def test_a_failing_tool_is_an_error_of_the_agent(ran: Ran) -> None:
    step = ran.steps["failingTool"]
    assert (step["kind"], step["status"]) == ("AgentError", "INTERNAL")
    assert "explode" in step["message"]


def test_state_and_artifacts_stream(ran: Ran) -> None:
    step = ran.steps["state"]
    assert step["seen"] == [{"notes": ["hello"]}, "notes"]
    assert step["state"] == {"notes": ["hello"]}
    assert step["artifacts"] == ["hello"]


def test_a_client_that_cannot_carry_a_signature_is_told_so(ran: Ran) -> None:
    if ran.client == "python":
        assert all("not signed by this application" in ran.steps[name]["thrown"] for name in GUESTS)


def test_a_client_that_keeps_the_state_itself_pauses_and_goes_on(ran: Ran) -> None:
    if ran.client == "python":
        pytest.skip("the Python client takes no state that is signed")

    def kept(step: dict[str, Any]) -> dict[str, Any]:
        return {**step, "hasSnapshot": False}

    assert ran.steps["guest"]["all"] == [
        kept(s)
        for s in (
            said("you said hello"), paused(13), paused(13), said("done: enough"), said("you said thanks"),
        )
    ]  # fmt: skip
    if ran.client == "node":
        assert ran.steps["guest"]["roles"] == ["user", "model", "user", "model", "tool", "model", "user", "model"]


def test_a_client_that_keeps_the_state_itself_goes_on_after_tools_ran(ran: Ran) -> None:
    if ran.client == "python":
        pytest.skip("the Python client takes no state that is signed")
    step = ran.steps["guestTools"]
    assert step["last"] == {**said("you said thanks"), "hasSnapshot": False}
    assert step["state"] == {"notes": ["hello", "again"]}
    assert step["artifacts"] == ["again"]


def test_misuse_says_what_is_wrong(ran: Ran) -> None:
    misuse = ran.steps["misuse"]
    assert {name: m["kind"] for name, m in misuse.items()} == dict.fromkeys(misuse, "AgentError")
    assert (misuse["snapshot"]["status"], misuse["state"]["status"]) == ("NOT_FOUND", "FAILED_PRECONDITION")
    assert "Cannot send 'state'" in misuse["state"]["message"]
    assert misuse["ids"]["status"] == "FAILED_PRECONDITION"
    assert "Cannot use 'sessionId'" in misuse["ids"]["message"]
    assert "no agent 'nobody' here" in misuse["agent"]["message"]


def test_strangers_are_told_that_they_are(ran: Ran) -> None:
    for refused in ran.steps["strangers"]:
        assert "token" in refused["message"]
        assert "401" in refused["message"] or refused["status"] == "UNAUTHENTICATED"


def test_the_audit_says_who_decided_and_from_where(ran: Ran) -> None:
    async def audit() -> list[tuple[Any, ...]]:
        page = await ran.clerk.ai.inbox.list(status="resolved", limit=1000)
        rows = [d for r in page.items for d in await ran.clerk.ai.inbox.history(r.id)]
        return [(d.by, d.address) for d in rows if d.verb in ("respond", "restart")]

    rows = run_sync(audit())
    assert len(rows) > 8
    assert set(rows) == {("ann", "127.0.0.1")}

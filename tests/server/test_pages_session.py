"""The pages of sessions: the list, and the timeline of one."""

from typing import Any

import pytest

from adjourn import AgentInit
from adjourn.server.pages_steps import steps, totals
from adjourn.timeline import Entry
from server.pages_kit import Page, Visitor, visitor
from server.server_kit import Office, People


@pytest.fixture
async def root(people: People) -> Visitor:
    return await visitor(people.client, "root")


async def talk(office: Office, text: str, owner: str = "ann") -> Any:
    session = office.ai.agents["clerk"].connect(AgentInit(owner=owner))
    await session.send(text).output
    return session


async def settle(office: Office, session: Any, verb: str = "restart", **given: Any) -> None:
    accepted = await getattr(office.ai.inbox, verb)(session.interrupts[0].id, by="ben", **given)
    await accepted.turn.settled()


def marks(page: Page) -> list[str]:
    """The kinds of the steps, in order."""
    return [a["class"] for t, a in page.tags if t == "li" and a.get("id", "").startswith("step-")]


async def test_sessions_are_listed_and_filtered(root: Visitor, office: Office) -> None:
    await talk(office, "hello")
    await talk(office, "pay 5", "ben")
    page = await root.get("/sessions")
    assert (page.text.count("Finished"), page.text.count("Waits for a decision")) == (1, 1)
    page = await root.get("/sessions?owner=ben")
    assert (page.text.count("Finished"), page.text.count("Waits for a decision")) == (0, 1)
    assert "Nothing matches" in (await root.get("/sessions?agent=nobody")).text
    for n in range(60):
        await talk(office, f"number {n}", "cleo")
    page = await root.get("/sessions?owner=cleo")
    assert page.text.count("Finished") == 50
    page = await root.get(page.links["Next →"])
    assert page.text.count("Finished") == 10
    page = await root.get(page.links["← Previous"])
    assert page.text.count("Finished") == 50


async def test_a_timeline_tells_all_steps_with_durations_and_who_decided(root: Visitor, office: Office) -> None:
    session = await talk(office, "pay 5")
    page = await root.get(f"/sessions/{session.id}")
    assert marks(page) == ["message", "model", "pause"]
    assert "Waits for 1 decision" in page.text
    assert page.links["pay(amount=5)"].endswith(session.interrupts[0].id)
    await settle(office, session)
    page = await root.get(f"/sessions/{session.id}")
    assert marks(page) == ["message", "model", "pause", "decision", "tool", "model", "end"]
    for words in (
        "Somebody wrote pay 5",
        "The model asks for pay",
        "pay(amount=5) waits for a decision",
        "ben approved pay after",
        "pay(amount=5) ran",
        "The model replied",
        "State Finished",
        "Model calls 2",
        "Tool runs 1",
        "Decisions 1",
    ):
        assert words in page.text, words
    assert " ms" in page.text


async def test_a_failure_a_fork_and_a_crash_are_told(root: Visitor, office: Office) -> None:
    session = await talk(office, "pay 5")
    branch = await session.fork()
    assert branch.interrupts
    page = await root.get(f"/sessions/{session.id}")
    assert "fork" in marks(page)
    with pytest.raises(Exception, match="broken"):
        await talk(office, "fail")
    page = await root.get(
        next(h for _, h in reversed((await root.get("/sessions")).links.items()) if "/sessions/" in h)
    )
    assert marks(page)[-1] == "end failed"
    assert "State Failed" in page.text


def test_steps_tell_tokens_limits_takeovers_and_edited_inputs() -> None:
    told = [
        Entry(1.0, "message", "go", "n_1", {"message": {"role": "user", "content": [{"text": "go"}]}}),
        Entry(
            2.0,
            "model",
            "",
            "n_1",
            {"message": {"content": []}, "usage": {"inputTokens": 1200, "outputTokens": 34}},
            1.5,
        ),
        Entry(3.0, "pause", "pay waits", "n_1", {"interrupt": "i_1", "payload": None}),
        Entry(
            63.0,
            "decision",
            "",
            "n_1",
            {"interrupt": "i_1", "verb": "restart", "by": "ann", "tool": "pay", "input": {"n": 2}},
        ),
        Entry(64.0, "crash", "another one took over", "n_1", {"epoch": 2}),
        Entry(
            65.0,
            "end",
            "The turn failed",
            "n_1",
            {"reason": "failed", "limit": "repeats", "error": {"message": "stuck"}},
        ),
    ]
    seen = steps(told, lambda path: "/prefix" + path)
    assert [s.css for s in seen] == ["message", "model", "pause", "decision", "crash", "end failed"]
    assert list(seen[1].chips) == ["1,200 tokens in, 34 out"]
    assert seen[2].link == "/prefix/inbox/i_1"
    assert (seen[3].title, list(seen[3].chips)) == ("ann approved pay", ["after 1 minute"])
    assert dict(seen[3].details) == {"Input": '{\n  "n": 2\n}'}
    assert (list(seen[5].chips), seen[5].text) == (["limit: repeats"], "stuck")
    assert ("Tokens", "1,234") in totals(told)
    assert ("Running time", "1.5 s") in totals(told)


async def test_somebody_elses_session_is_not_there(people: People, office: Office) -> None:
    session = await talk(office, "hello", "ben")
    ann = await visitor(people.client, "ann")
    assert (await ann.get(f"/sessions/{session.id}")).status == 404
    assert "No sessions yet" in (await ann.get("/sessions")).text


async def test_an_open_page_can_ask_for_the_steps_alone(root: Visitor, office: Office) -> None:
    session = await talk(office, "hello")
    page = await root.get(f"/sessions/{session.id}?fragment=yes")
    assert "<html" not in page.html
    assert marks(page) == ["message", "model", "end"]

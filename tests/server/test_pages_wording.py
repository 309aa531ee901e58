"""What the pages say where somebody who has never seen them would stumble."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn.server import Server, pages_session
from adjourn.server.pages_steps import steps
from adjourn.server.pages_view import sentence
from adjourn.testing import FakeClock
from adjourn.timeline import Entry
from server.pages_desk_kit import Desk, application
from server.pages_kit import Page, Visitor, visitor
from server.server_kit import at


@pytest.fixture
async def desk(shared_app: Server) -> AsyncIterator[Desk]:
    clock, log = FakeClock(), list[Any]()
    ai = application(clock, log)
    shared_app.state.desk.ai = ai

    @ai.tool(approval=True)
    async def ping() -> str:
        return "pong"

    async with at(shared_app) as people:
        yield Desk(people, ai, clock, log, await visitor(people.client, "root"))


def emphasised(page: Page) -> list[str]:
    """The buttons that are urged on whoever decides, by their key or id."""
    loud = [a for t, a in page.tags if t == "button" and "go" in a.get("class", "").split()]
    return [a.get("id") or a.get("data-key", "") for a in loud if "autofocus" not in a]  # not the help's own


async def put(desk: Desk, interrupt_id: str, **changed: Any) -> None:
    store = desk.ai.stores()[0]
    row = await desk.ai.inbox.get(interrupt_id)
    store.submit(lambda tx: tx.put_interrupt(replace(row, **changed))).result()


async def linked(desk: Desk, interrupt_id: str) -> str:
    reply = await desk.people["root"]("POST", f"/api/interrupts/{interrupt_id}/links", {"by": "erin"})
    return reply.json()["url"].rpartition("/link/")[2]


async def test_one_button_at_most_is_urged_on_whoever_decides_and_none_that_may_do_harm(desk: Desk) -> None:
    assert emphasised(await desk.open("pay", {"euros": 5})) == ["approve"]
    wanted = await desk.open("guess", {"what": "cups"})
    assert emphasised(wanted) == ["r"]
    assert "Send answer" in wanted.form("/respond").buttons
    assert "Respond instead" not in wanted.text
    interrupt_id = await desk.pause("pay", {"euros": 6})
    await put(desk, interrupt_id, reason="outcome_unknown")
    unsure = await desk.root.get(f"/inbox/{interrupt_id}")
    assert "Run it again" in unsure.form("/restart").buttons
    assert emphasised(unsure) == []


async def test_errors_in_groups_and_rows_say_in_which(desk: Desk) -> None:
    page = await desk.open("review", {"customer": "Ann"})
    for _ in range(2):
        page = await desk.root.send(
            page.form("/respond"), "Add" if "Add" in page.form("/respond").buttons else "Add another"
        )
    typed = {"$.lines[1].quantity": "many", "$.accepted": "true", "$.size": '"small"'}
    page = await desk.root.send(page.form("/respond"), "Send answer", fields=typed)
    assert page.links["Lines 2 \u203a Quantity"] == "#f%24.lines%5B1%5D.quantity"
    assert "#f%24.lines%5B1%5D.quantity".removeprefix("#") in page.ids


async def test_a_tool_without_input_is_told_as_that(desk: Desk) -> None:
    page = await desk.open("ping")
    assert "It takes no input." in page.text
    page = await desk.root.get("/inbox")
    assert "ping no input Agent: clerk" in page.text
    assert "approval" not in page.text


async def test_among_everything_what_waits_can_be_decided_together(desk: Desk) -> None:
    await desk.pause("pay", {"euros": 5})
    page = await desk.root.get("/inbox?status=all")
    assert "Approve…" in page.form("/inbox/bulk").buttons
    assert "Approve…" not in next(
        (f.buttons for f in (await desk.root.get("/inbox?status=resolved")).forms if "bulk" in f.action), ()
    )


async def test_items_of_several_tools_are_told_apart_in_the_words_of_the_list(desk: Desk) -> None:
    ids = [await desk.pause("pay", {"euros": 5}, "ben"), await desk.pause("sign", {"what": "a lease"})]
    page = await desk.root.get("/inbox")
    page = await desk.root.send(page.form("/inbox/bulk"), "Decline…", id=ids)
    assert "euros: 5 clerk · ben · just now" in page.text
    assert "what: a lease clerk · ann · just now" in page.text


async def test_who_may_only_look_is_told_without_talk_of_changes(desk: Desk) -> None:
    guest = await visitor(desk.people.client, "looker")
    page = await guest.get(f"/inbox/{await desk.pause('pay', {'euros': 5})}")
    assert "Your role here is view. Deciding takes the role decide: ask whoever gave you access." in page.text
    assert "Nothing was changed" not in page.text


async def test_a_link_says_that_it_is_done_and_later_what_became_of_the_item(desk: Desk) -> None:
    guest = Visitor(desk.people.client)
    address = f"/link/{await linked(desk, await desk.pause('pay', {'euros': 5}))}"
    page = await guest.send((await guest.get(address)).form("/restart"))
    assert "You approved it. just now" in page.text
    assert "You can close this page." in page.text
    page = await guest.get(address)
    assert (page.status, page.title) == (410, "This link is no longer good · Adjourn")
    assert "'pay' was decided. Nothing was done." in page.text
    address = f"/link/{await linked(desk, await desk.pause('sign', {'what': 'it'}))}"
    desk.clock.time += 700
    page = await guest.get(address)
    assert "'sign' expired before anybody decided. Nothing was done." in page.text


async def test_an_expired_item_is_not_called_decided(desk: Desk) -> None:
    interrupt_id = await desk.pause("sign", {"what": "it"})
    desk.clock.time += 700
    page = await desk.root.get(f"/inbox/{interrupt_id}")
    assert "Nobody decided in time." in page.text
    assert "Decided" not in page.text


async def test_pages_of_errors_speak_in_sentences_without_marks_of_code(desk: Desk) -> None:
    page = await desk.root.get("/inbox/i_unknown")
    assert "There is no interrupt 'i_unknown' (any more): list what waits, and take the id from there." in page.text
    page = await desk.root.get("/link/nonsense")
    assert "not all of it was copied." in page.text
    assert sentence("it is. ") == "It is."
    assert sentence("") == ""


async def test_only_the_end_of_a_very_long_session_is_shown_which_is_said_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await desk.ai.inbox.get(await desk.pause("pay", {"euros": 5}))
    monkeypatch.setattr(pages_session, "SHOWN", 2)
    page = await desk.root.get(f"/sessions/{row.session_id}")
    assert "These are the last 2 steps. All of them as JSON , with 1 earlier one" in page.text
    assert page.text.index("These are the last 2") < page.text.index("pay(euros=5) waits for a decision")
    reply = await desk.root.request("GET", page.links["All of them as JSON"])
    assert len(reply.json()["items"]) == 3


def test_how_long_a_tool_ran_before_it_paused_is_not_how_long_it_waited() -> None:
    facts = {"interrupt": "i_1"}
    entries = [Entry(3.0, "pause", "pay waits", "n_1", facts, ran) for ran in (0.25, 12.0)]
    assert [(step.took, list(step.chips)) for step in steps(entries, str)] == [
        (None, []),
        (None, ["ran 12.0 s until then"]),
    ]

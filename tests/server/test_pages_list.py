"""The inbox page: what it lists, how it is filtered and paged, and decisions on several items at once."""

from typing import Any

import msgspec
import pytest

from adjourn import AgentInit
from adjourn.stores.sqlite import SQLiteStore
from server.pages_kit import Page, Visitor, visitor
from server.server_kit import Office, People, app_of, at


async def pause(office: Office, text: str, owner: str = "ann", agent: str = "clerk") -> str:
    session = office.ai.agents[agent].connect(AgentInit(owner=owner))
    await session.send(text).output
    return session.interrupts[0].id


@pytest.fixture
async def root(people: People) -> Visitor:
    return await visitor(people.client, "root")


def listed(page: Page) -> list[str]:
    """The ids on the page, in order."""
    return [a["data-id"] for t, a in page.tags if t == "li" and "data-id" in a]


def copies(office: Office, interrupt_id: str, count: int) -> None:
    """Puts more interrupts like this one into the store, a second apart."""

    def work(tx: Any) -> None:
        row = tx.interrupt(interrupt_id)
        for n in range(count):
            tx.put_interrupt(msgspec.structs.replace(row, id=f"i_{n:032x}", created=row.created + 1 + n))

    office.store.submit(work).result()


async def test_what_waits_is_listed_oldest_first_with_all_that_tells_it_apart(root: Visitor, office: Office) -> None:
    ids = [
        await pause(office, "pay 5"),
        await pause(office, "ask why", "ben"),
        await pause(office, "ship 7", agent="depot"),
    ]
    page = await root.get("/inbox")
    assert page.title == "(3) Inbox · Adjourn"
    assert listed(page) == ids
    assert "3 items wait" in page.text
    for words in (
        "pay amount: 5 Agent: clerk Owner: ann Asked just now",
        "ask text: why Agent: clerk Owner: ben",
        "ship amount: 7",
    ):
        assert words in page.text


async def test_times_are_relative_and_absolute_and_a_countdown_tells_of_expiry(root: Visitor, office: Office) -> None:
    interrupt_id = await pause(office, "pay 5")

    def age(tx: Any) -> None:
        row = tx.interrupt(interrupt_id)
        tx.put_interrupt(msgspec.structs.replace(row, created=row.created - 7300, expires_at=row.created + 3700))

    office.store.submit(age).result()
    page = await root.get("/inbox")
    assert "2 hours ago" in page.text
    assert "expires in 1 hour" in page.text
    times = [a for t, a in page.tags if t == "time"]
    assert len(times) == 2
    for time in times:
        assert time["title"].endswith(" UTC")
        assert time["datetime"].endswith("Z")


async def test_an_empty_inbox_says_so_and_a_search_without_a_match_another_thing(root: Visitor) -> None:
    page = await root.get("/inbox")
    assert "Nothing waits for you" in page.text
    assert page.title == "(0) Inbox · Adjourn"
    assert "Nothing matches" in (await root.get("/inbox?q=zebra")).text
    assert "Nothing here yet" in (await root.get("/inbox?status=expired")).text


async def test_filters_narrow_the_list_and_stay_in_the_form(root: Visitor, office: Office) -> None:
    pay, ask = await pause(office, "pay 5"), await pause(office, "ask why not", "ben")
    ship = await pause(office, "ship 7", "cleo", "depot")
    for query, expected in (
        ("tool=pay", [pay]),
        ("agent=depot", [ship]),
        ("owner=ben", [ask]),
        ("q=WHY+NOT", [ask]),
        ("q=cleo", [ship]),
        ("tool=pay&owner=ben", []),
        ("status=all", [pay, ask, ship]),
        ("status=nonsense", [pay, ask, ship]),
    ):
        assert listed(await root.get(f"/inbox?{query}")) == expected, query
    page = await root.get("/inbox?tool=pay&q=5&status=open")
    fields = page.forms[1].fields
    assert (fields["tool"], fields["q"], fields["status"]) == (["pay"], ["5"], ["open"])
    assert "1 matching item waits" in page.text


async def test_pages_lead_to_the_end_and_back_without_gaps(root: Visitor, office: Office) -> None:
    first = await pause(office, "pay 5")
    copies(office, first, 119)
    seen: list[list[str]] = []
    page = await root.get("/inbox?q=pay")
    assert page.title == "(120) Inbox · Adjourn"
    while True:
        seen.append(listed(page))
        if "Next →" not in page.links:
            break
        page = await root.get(page.links["Next →"])
    assert [len(s) for s in seen] == [50, 50, 20]
    assert len({i for s in seen for i in s}) == 120
    back: list[list[str]] = []
    while "← Previous" in page.links:
        page = await root.get(page.links["← Previous"])
        back.append(listed(page))
    assert back == [seen[1], seen[0]]
    assert "← Previous" not in page.links


async def test_who_may_only_look_is_offered_nothing_to_decide(people: People, office: Office) -> None:
    await pause(office, "pay 5")
    looker = await visitor(people.client, "looker")
    page = await looker.get("/inbox")
    assert len(listed(page)) == 1
    assert not any(a.get("type") == "checkbox" and a.get("name") == "id" for _, a in page.tags)
    assert "Approve…" not in page.text


async def test_what_belongs_to_others_is_not_there(people: People, office: Office) -> None:
    mine, other = await pause(office, "pay 5", "ann"), await pause(office, "pay 6", "ben")
    ann = await visitor(people.client, "ann")
    page = await ann.get("/inbox?status=all")
    assert listed(page) == [mine]
    assert "1 item" in page.text
    assert (await ann.get(f"/inbox/{other}")).status == 404


async def test_an_open_page_can_ask_for_its_rows_alone(root: Visitor, office: Office) -> None:
    interrupt_id = await pause(office, "pay 5")
    page = await root.get("/inbox?fragment=yes")
    assert page.html.lstrip().startswith("<ol")
    assert listed(page) == [interrupt_id]
    row = await root.get(f"/inbox/{interrupt_id}?fragment=row")
    assert row.html.lstrip().startswith("<li")


@pytest.mark.slow
async def test_a_hundred_thousand_items_can_be_searched_and_paged(tmp_path: Any) -> None:
    office = Office(SQLiteStore(tmp_path / "many.db"))
    async with at(app_of(office)) as people:
        first = await pause(office, "pay 5")
        copies(office, first, 99_999)
        root = await visitor(people.client, "root")
        page = await root.get("/inbox")
        assert page.title == "(100,000) Inbox · Adjourn"
        for _ in range(3):
            page = await root.get(page.links["Next →"])
        assert len(listed(page)) == 50
        page = await root.get("/inbox?q=i_" + f"{99_000:032x}")
        assert len(listed(page)) == 1
    office.store.close()


# -- several at once -------------------------------------------------------------------------------------------------


async def chosen(root: Visitor, ids: list[str], button: str) -> Page:
    page = await root.get("/inbox")
    return await root.send(page.form("/inbox/bulk"), button, fields={"id": ids})


async def test_several_of_one_tool_are_shown_once_more_and_then_approved(root: Visitor, office: Office) -> None:
    ids = [await pause(office, f"pay {n}", owner) for n, owner in ((5, "ann"), (6, "ben"), (7, "ann"))]
    page = await chosen(root, ids[:2], "Approve…")
    assert "Approve 2 items of pay?" in page.text
    assert "pay runs for each of these, with exactly the input shown" in page.text
    assert office.log == []
    page = await root.send(page.form("/inbox/bulk"), "Approve 2 items")
    assert "2 of 2 items approved" in page.text
    rows = [await office.ai.inbox.get(i) for i in ids]
    assert [r.status for r in rows] == ["resolved", "resolved", "open"]
    decisions = [(await office.ai.inbox.history(i))[0] for i in ids[:2]]
    assert [(d.verb, d.by, d.address) for d in decisions] == [("restart", "root", "127.0.0.1")] * 2


async def test_several_are_declined_with_one_reason(root: Visitor, office: Office) -> None:
    ids = [await pause(office, "pay 5"), await pause(office, "pay 6")]
    page = await chosen(root, ids, "Decline…")
    page = await root.send(page.form("/inbox/bulk"), "Decline 2 items", reason="over budget")
    assert "2 of 2 items declined" in page.text
    for interrupt_id in ids:
        assert [(d.verb, d.reason) for d in await office.ai.inbox.history(interrupt_id)] == [("decline", "over budget")]
    assert office.log == []


async def test_different_tools_are_not_decided_together_and_one_of_them_is_offered(
    root: Visitor, office: Office
) -> None:
    ids = [await pause(office, "pay 5"), await pause(office, "ship 7"), await pause(office, "pay 6")]
    page = await chosen(root, ids, "Approve…")
    assert page.status == 422
    assert "These are of 2 different tools" in page.text
    forced = page.forms[1]
    forced.fields |= {"id": ids, "confirm": ["yes"]}
    assert (await root.send(forced)).status == 422
    assert [(await office.ai.inbox.get(i)).status for i in ids] == ["open"] * 3
    page = await chosen(root, ids, "Approve…")
    page = await root.send(page.forms[1], "Go on with these 2")
    assert "Approve 2 items of pay?" in page.text


async def test_what_asks_for_an_answer_cannot_be_approved_in_bulk(root: Visitor, office: Office) -> None:
    ids = [await pause(office, "ask why"), await pause(office, "ask what")]
    page = await chosen(root, ids, "Approve…")
    assert page.status == 422
    assert "Some of these ask for an answer" in page.text
    page = await chosen(root, [], "Approve…")
    assert "Nothing was selected" in page.text


async def test_what_may_have_run_before_is_not_approved_in_bulk(root: Visitor, office: Office) -> None:
    ids = [await pause(office, "pay 5"), await pause(office, "pay 6")]

    def lose(tx: Any) -> None:
        tx.put_interrupt(msgspec.structs.replace(tx.interrupt(ids[1]), reason="outcome_unknown"))

    office.store.submit(lose).result()
    page = await chosen(root, ids, "Approve…")
    assert page.status == 422
    assert "Some of these may have run before" in page.text
    page = await chosen(root, ids, "Decline…")
    assert "Decline 2 items of pay?" in page.text


async def test_what_was_decided_meanwhile_is_told_and_the_rest_is_done(root: Visitor, office: Office) -> None:
    ids = [await pause(office, "pay 5"), await pause(office, "pay 6")]
    page = await chosen(root, ids, "Approve…")
    await office.ai.inbox.decline(ids[0], "no", by="ben", run=False)
    page = await root.send(page.form("/inbox/bulk"), "Approve 2 items")
    assert "1 of 2 items approved" in page.text
    assert "1 item had been decided before" in page.text
    assert "by ben" in page.text


async def test_sending_the_same_confirmation_twice_decides_once(root: Visitor, office: Office) -> None:
    ids = [await pause(office, "pay 5"), await pause(office, "pay 6")]
    confirm = (await chosen(root, ids, "Decline…")).form("/inbox/bulk")
    first, second = await root.send(confirm), await root.send(confirm)
    assert "2 of 2 items declined" in first.text
    assert "2 of 2 items declined" in second.text
    for interrupt_id in ids:
        assert len(await office.ai.inbox.history(interrupt_id)) == 1


async def test_what_is_not_ones_own_cannot_be_slipped_in(people: People, office: Office) -> None:
    mine, other = await pause(office, "pay 5", "ann"), await pause(office, "pay 6", "ben")
    ann = await visitor(people.client, "ann")
    page = await ann.get("/inbox")
    page = await ann.send(page.form("/inbox/bulk"), "Approve…", fields={"id": [mine, other]})
    assert page.status == 422
    assert "1 item cannot be found" in page.text
    assert (await office.ai.inbox.get(other)).status == "open"

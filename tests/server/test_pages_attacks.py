"""What the pages do with forms and items that were made to harm: they stay small, quick and honest, and do not break."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn import AgentInit, Interrupt
from adjourn.lease import transact
from adjourn.server import Server
from adjourn.server.pages_values import changes
from adjourn.testing import FakeClock
from server.pages_desk_kit import Desk, application
from server.pages_kit import Page, visitor
from server.server_kit import at

DEEP = "[" * 5_000 + "]" * 5_000
HIDING = "pay\u202eyap\x1b[31m\u200b"


@pytest.fixture
async def desk(shared_app: Server) -> AsyncIterator[Desk]:
    clock, log = FakeClock(), list[Any]()
    ai = application(clock, log)

    @ai.tool()
    async def grid(what: str) -> Any:
        schema = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
        raise Interrupt({"what": what}, response=schema)

    @ai.tool()
    async def sheets(cells: list[list[str]]) -> Any:
        raise Interrupt({"cells": len(cells)})

    clerk = ai.agents["clerk"]
    ai.define_agent("filer", store=clerk.store, tools=["grid", "sheets"])
    shared_app.state.desk.ai = ai
    async with at(shared_app) as people:
        yield Desk(people, ai, clock, log, await visitor(people.client, "root"))


async def opened(desk: Desk, tool: str, given: Any) -> Page:
    session = desk.ai.agents["filer"].connect(AgentInit(owner="ann"))
    await session.send(json.dumps([tool, given])).output
    return await desk.root.get(f"/inbox/{session.interrupts[0].id}")


async def test_a_form_with_too_many_rows_is_refused_in_a_page_of_ordinary_size(desk: Desk) -> None:
    page = await opened(desk, "grid", {"what": "a plan"})
    rows = {"$#": "150", **{f"$[{a}]#": "150" for a in range(150)}, "$[1][2]": "7.5"}
    page = await desk.root.send(page.form("/respond"), fields=rows)
    assert page.status == 422
    assert "has more than 2,000 rows in all its lists" in page.text
    assert len(page.html) < 200_000
    assert page.form("/respond").fields["$[1][2]"] == ["7.5"]
    assert await desk.decisions(page) == []


async def test_an_input_with_too_many_rows_for_a_form_is_edited_as_json(desk: Desk) -> None:
    page = await opened(desk, "sheets", {"cells": [["x"] * 200] * 11})
    form = page.form("/review")
    assert form.fields["_as"] == ["json"]
    assert json.loads(form.fields["_json"][0]) == {"cells": [["x"] * 200] * 11}


@pytest.mark.parametrize("name,at_the_field", [("_metadata_json", "The note holds"), ("_input", "is nested too deep")])
async def test_json_that_is_nested_too_deep_is_told_at_its_field(desk: Desk, name: str, at_the_field: str) -> None:
    page = await desk.open("pay", {"euros": 5})
    page = await desk.root.send(page.form("/restart"), fields={name: DEEP})
    assert page.status == 422
    assert "The form came back damaged. Nothing was changed." in page.text
    assert at_the_field in page.text
    assert await desk.decisions(page) == []


async def test_nothing_hides_in_the_names_that_the_list_and_its_confirmations_show(desk: Desk) -> None:
    page = await desk.open("pay", {"euros": 5})
    interrupt_id = await desk.id_of(page)

    def rename(tx: Any) -> None:
        tx.put_interrupt(replace(tx.interrupt(interrupt_id), tool=HIDING, agent=HIDING))

    await transact(desk.ai.stores()[0], rename)
    listed = await desk.root.get("/inbox")
    for verb in ("restart", "decline"):
        page = await desk.root.send(listed.form("/bulk"), id=interrupt_id, verb=verb)
        assert page.status == 200
        assert "1 item of pay⟨U+202E⟩yap␛[31m⟨U+200B⟩?" in page.title
        assert "\u202e" not in page.text + page.title
        assert "\x1b" not in page.text + page.title
    offered = [given["value"] for tag, given in listed.tags if tag == "option" and "yap" in given.get("value", "")]
    assert offered == ["pay⟨U+202E⟩yap␛[31m⟨U+200B⟩"] * 2


def test_texts_made_to_be_slow_to_compare_are_shown_whole() -> None:
    # Each search for the longest match looks at all pairs anew, and finds next to nothing: half a minute, unbounded.
    old, new = "!" * 1500, "?!" * 750
    assert [(c.old, c.new) for c in changes({"x": old}, {"x": new})] == [([(True, old)], [(True, new)])]


def test_the_texts_of_a_page_share_the_work_and_short_ones_are_still_compared() -> None:
    long_old, long_new = "a b " * 300, "b a c " * 220
    many = changes({f"t{i}": long_old for i in range(200)}, {f"t{i}": long_new for i in range(200)})
    assert sum(len(c.old or ()) == 1 for c in many) > 190
    (short,) = changes({"t": "pay 5 euros"}, {"t": "pay 6 euros"})
    assert short.old == [(False, "pay "), (True, "5"), (False, " euros")]

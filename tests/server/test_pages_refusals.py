"""What the page of one item refuses, what it says then, and that nothing typed is lost."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from adjourn import AgentInit
from adjourn.server import Auth, Server, create_app
from adjourn.testing import FakeClock
from server.pages_desk_kit import Desk, application
from server.pages_kit import Form, visitor
from server.server_kit import PEOPLE, UNLIMITED, at


@pytest.fixture
async def desk(shared_app: Server) -> AsyncIterator[Desk]:
    clock, log = FakeClock(), list[Any]()
    ai = application(clock, log)
    shared_app.state.desk.ai = ai
    async with at(shared_app) as people:
        yield Desk(people, ai, clock, log, await visitor(people.client, "root"))


# -- refusals --------------------------------------------------------------------------------------------------------


async def test_who_comes_second_is_told_who_was_first_and_keeps_his_words(desk: Desk) -> None:
    page = await desk.open("pay", {"euros": 5})
    ben = await visitor(desk.people.client, "wide")
    late = await ben.get(f"/inbox/{await desk.id_of(page)}")
    await desk.root.send(page.form("/restart"))
    late = await ben.send(late.form("/decline"), reason="I know this customer")
    assert late.status == 409
    assert "root approved this before your decision arrived" in late.text
    assert "Yours (to decline) changed nothing." in late.text
    assert "I know this customer" in late.text
    assert [d.verb for d in await desk.decisions(page)] == ["restart"]


async def test_what_expired_is_told_as_that(desk: Desk) -> None:
    page = await desk.open("sign", {"what": "a lease"})
    assert "Expires in 10 minutes" in page.text
    assert "If nobody decides in time: the agent is told" in page.text
    desk.clock.time += 601
    page = await desk.root.send(page.form("/decline"), reason="no")
    assert page.status == 410
    assert "This expired before your decision arrived" in page.text
    assert "Expired clerk wanted to run sign" in page.text
    assert "Nobody decided in time." in page.text
    page = await desk.root.get("/inbox?status=expired")
    assert "sign Expired" in page.text


async def test_what_changed_since_it_was_shown_is_not_decided(desk: Desk) -> None:
    page = await desk.open("review", {"customer": "Ann"})
    interrupt_id = await desk.id_of(page)

    def change(tx: Any) -> None:
        tx.put_interrupt(
            msgspec.structs.replace(tx.interrupt(interrupt_id), input={"customer": "Eve"}, input_digest="new")
        )

    desk.ai.stores()[0].submit(change).result()
    page = await desk.root.send(page.form("/respond"), "Send answer", accepted="true", size='"small"')
    assert page.status == 412
    assert "This changed since you opened it" in page.text
    assert "Eve" in page.text
    assert page.form("/respond").fields["$.accepted"] == ["true"]
    page = await desk.root.send(page.form("/respond"), "Send answer")
    assert "You answered it" in page.text


async def test_who_may_only_look_sees_why_and_cannot_decide_anyway(desk: Desk) -> None:
    page = await desk.open("pay", {"euros": 5})
    looker = await visitor(desk.people.client, "looker")
    seen = await looker.get(f"/inbox/{await desk.id_of(page)}")
    assert "You may look, not decide" in seen.text
    assert not any("/inbox/" in f.action for f in seen.forms)
    form = page.form("/restart")
    token = seen.form("/logout").fields["_csrf_token"]
    form.fields["_csrf_token"] = token
    refused = await looker.send(form)
    assert refused.status == 403
    assert (await desk.row(page)).status == "open"


async def test_what_was_typed_is_given_back_even_where_the_item_or_the_session_is_gone(desk: Desk) -> None:
    page = await desk.open("review", {"customer": "Ann"})
    form = page.form("/respond")
    typed = {"note": "a long story", "size": '"small"'}
    session_id = (await desk.row(page)).session_id
    kept = dict(desk.root.cookies)
    desk.root.cookies.clear()
    lost = await desk.root.send(form, "Send answer", **typed)
    assert lost.status == 401
    assert "note: a long story" in lost.text
    assert "Sign in" in lost.links
    desk.root.cookies = kept
    broken = Form(form.action, form.method, {**form.fields, "_csrf_token": ["forged"]}, form.buttons)
    lost = await desk.root.send(broken, "Send answer", **typed)
    assert lost.status == 403
    assert "note: a long story" in lost.text
    await desk.ai.sessions.delete(session_id, force=True)
    lost = await desk.root.send(form, "Send answer", **typed)
    assert lost.status == 404
    assert "note: a long story" in lost.text
    assert form.fields["_csrf_token"][0] not in lost.text


async def test_a_cancelled_item_says_so(desk: Desk) -> None:
    page = await desk.open("pay", {"euros": 5})
    row = await desk.row(page)
    await desk.ai.agents["clerk"].connect(AgentInit(session_id=row.session_id)).abort("not needed")
    page = await desk.root.send(page.form("/restart"))
    assert page.status == 409
    assert "Cancelled" in page.text
    assert desk.log == []


async def test_four_eyes_are_told_to_the_owner() -> None:
    clock, log = FakeClock(), list[Any]()
    ai = application(clock, log)
    async with at(create_app(ai, Auth(tokens=PEOPLE, four_eyes=True), settings=UNLIMITED)) as people:
        desk = Desk(people, ai, clock, log, await visitor(people.client, "root"))
        page = await desk.open("pay", {"euros": 5}, "root")
        assert "You may look, not decide" in page.text
        assert "four eyes" in page.text

"""Signed links for one decision: they show when opened, decide once when sent, and nothing after that."""

import time
from typing import Any

import pytest

from adjourn.server import Principal
from adjourn.server.links import DecisionLinks, Link, href, safe_next
from adjourn.server.seal import Seal
from server.server_kit import Office, People, app_of, at, until


async def made(people: People, interrupt: str, **body: Any) -> str:
    """The token of a link that root made for cleo."""
    reply = await people["root"]("POST", f"/api/interrupts/{interrupt}/links", {"by": "cleo", **body})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["url"].rsplit("/", 1)[-1])


def code_of(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["code"]


async def test_a_link_shows_when_it_is_opened_and_decides_when_it_is_sent(people: People, office: Office) -> None:
    one = await people["ann"].pause("pay 5")
    link = await made(people, one)
    for _ in range(3):  # as mail scanners do
        shown = await people[None]("GET", f"/api/links/{link}")
        assert shown.json()["input"] == {"amount": 5}
        await people[None]("HEAD", f"/api/links/{link}")
    assert (await people["ann"].get(f"/api/interrupts/{one}"))["status"] == "open"
    sent = await people[None]("POST", f"/api/links/{link}", {"verb": "restart"})
    assert sent.status_code == 202
    assert sent.json()["decision"]["by"] == "cleo"
    await until(lambda: office.log == [("paid", 5)])


async def test_it_is_good_for_one_decision(people: People) -> None:
    one = await people["ann"].pause()
    link, other = await made(people, one), await made(people, one)
    assert (await people[None]("POST", f"/api/links/{link}", {"verb": "decline"})).status_code == 202
    for spent in (link, other):
        assert code_of(await people[None]("GET", f"/api/links/{spent}")) == (410, "link-spent")
        assert code_of(await people[None]("POST", f"/api/links/{spent}", {"verb": "restart"})) == (410, "link-spent")


async def test_it_is_spent_when_somebody_else_decided(people: People) -> None:
    one = await people["ann"].pause()
    link = await made(people, one)
    await people["ann"]("POST", f"/api/interrupts/{one}/decline")
    assert code_of(await people[None]("POST", f"/api/links/{link}", {"verb": "restart"})) == (410, "link-spent")


async def test_it_is_spent_when_the_call_came_back_to_wait_again(office: Office) -> None:
    from adjourn.testing import ScriptedModel, call

    @office.ai.tool(approval=True)
    async def flaky() -> str:
        raise ValueError("it broke")

    model = ScriptedModel([call("flaky"), "so be it"])
    office.ai.define_agent("weak", store=office.store, model=model, tools=[flaky])
    async with at(app_of(office)) as people:
        one = await people["ann"].pause("go", "weak")
        link = await made(people, one)
        before = (await people["ann"].get(f"/api/interrupts/{one}"))["version"]
        await people["ann"]("POST", f"/api/interrupts/{one}/restart")

        async def waits_again() -> bool:
            row = await people["ann"].get(f"/api/interrupts/{one}")
            return bool(row["status"] == "open" and row["version"] != before)

        await until(waits_again)
        assert code_of(await people[None]("GET", f"/api/links/{link}")) == (410, "link-spent")
        assert code_of(await people[None]("POST", f"/api/links/{link}", {"verb": "restart"})) == (410, "link-spent")


async def test_it_allows_the_verbs_it_was_made_for(people: People) -> None:
    one = await people["ann"].pause()
    link = await made(people, one, verbs=["decline"])
    assert code_of(await people[None]("POST", f"/api/links/{link}", {"verb": "restart"})) == (403, "forbidden")
    assert (await people[None]("POST", f"/api/links/{link}", {"verb": "decline"})).status_code == 202


async def test_it_opens_nothing_else(people: People, office: Office) -> None:
    one, other = await people["ann"].pause("pay 1"), await people["ann"].pause("pay 2")
    link = await made(people, one)
    head = {"authorization": f"Bearer {link}"}
    for path in (
        f"/api/interrupts/{one}",
        f"/api/interrupts/{other}",
        "/api/interrupts",
        "/api/sessions",
        "/api/agents",
    ):
        assert (await people[None]("GET", path, headers=head)).status_code == 401
    linked = Link(one, "v", "cleo", ("decline",), int(time.time()) + 60, "n").principal()
    session = await office.ai.sessions.list()
    assert not linked.sees(session[0])
    assert not linked.at_least("admin")


@pytest.mark.parametrize("change", ["cut", "other end", "other body", "nothing", "other purpose", "other server", "é"])
async def test_a_link_that_was_altered_is_none_of_ours(people: People, office: Office, change: str) -> None:
    one = await people["ann"].pause()
    link = await made(people, one)
    body, _, mac = link.partition(".")
    row = await office.ai.inbox.get(one)
    changed = {
        "cut": link[:-3],
        "other end": f"{body}.{mac[:-2]}AA" if not mac.endswith("AA") else f"{body}.{mac[:-2]}BB",
        "other body": f"{body[:-4]}AAAA.{mac}",
        "nothing": "x",
        "other purpose": Seal([b"a-secret-of-these-tests-0123456789"]).close(
            "session", Link(one, row.version_tag, "cleo", ("restart",), int(time.time()) + 99, "n")
        ),
        "other server": DecisionLinks(Seal(()), 60, None).token(row, by="cleo"),
        "é": "é",
    }[change]
    assert code_of(await people[None]("GET", f"/api/links/{changed}")) == (404, "link-invalid")
    assert code_of(await people[None]("POST", f"/api/links/{changed}", {"verb": "restart"})) == (404, "link-invalid")


async def test_a_link_expires(people: People, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await people["ann"].pause()
    link = await made(people, one, expiresIn=60)
    later = time.time() + 61
    monkeypatch.setattr("adjourn.server.links.time.time", lambda: later)
    assert code_of(await people[None]("POST", f"/api/links/{link}", {"verb": "restart"})) == (404, "link-invalid")


@pytest.mark.parametrize(
    "body",
    [
        {"expiresIn": 0},
        {"expiresIn": 1e12},
        {"by": ""},
        {"by": "  "},
        {"by": "a\0b"},
        {"by": "ann\u202enna"},
        {"by": "x" * 201},
        {"verbs": []},
    ],
    ids=["at once", "never", "nobody", "blank", "hidden", "turned round", "long", "none"],
)
async def test_a_link_that_makes_no_sense_is_not_made(people: People, body: dict[str, Any]) -> None:
    one = await people["ann"].pause()
    reply = await people["root"]("POST", f"/api/interrupts/{one}/links", {"by": "cleo", **body})
    assert code_of(reply) == (422, "invalid-request")


async def test_links_lead_to_where_people_reach_the_server(office: Office) -> None:
    async with at(app_of(office, public_url="https://inbox.example/adjourn/")) as people:
        one = await people["ann"].pause()
        reply = await people["root"]("POST", f"/api/interrupts/{one}/links", {"by": "cleo"})
        assert reply.json()["url"].startswith("https://inbox.example/adjourn/link/")


def test_a_changed_secret_keeps_what_is_out_while_the_old_one_is_still_listed() -> None:
    old, new = b"o" * 32, b"n" * 32
    link = Link("i_1", "v", "cleo", ("decline",), 1, "n")
    assert Seal([new, old]).open("link", Seal([old]).close("link", link), Link) == link
    assert Seal([new]).open("link", Seal([old]).close("link", link), Link) is None


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/sessions?x=1", "/sessions?x=1"),
        ("//evil.example", "/inbox"),
        ("/\\evil.example", "/inbox"),
        ("https://evil.example", "/inbox"),
        ("/a\r\nset-cookie: x", "/inbox"),
        ("/login?next=/x", "/inbox"),
        ("javascript:alert(1)", "/inbox"),
        ("", "/inbox"),
        (None, "/inbox"),
    ],
)
def test_after_signing_in_one_goes_to_this_server_and_nowhere_else(target: str | None, expected: str) -> None:
    assert safe_next(target) == expected


def test_a_path_is_linked_under_the_prefix_of_the_server() -> None:
    assert href({"root_path": "/tools/inbox/"}, "/login") == "/tools/inbox/login"
    assert href({}, "/login") == "/login"


def test_a_principal_sees_its_own_unless_a_scope_says_otherwise() -> None:
    assert Principal("ann").owner_scope == frozenset(["ann"])
    assert Principal("root", "admin").owner_scope is None
    assert Principal("ann", owners=None).owner_scope is None
    assert Principal("root", "admin", owners=frozenset(["ann"])).owner_scope == frozenset(["ann"])
    wrong: Any = "boss"
    with pytest.raises(ValueError, match="boss"):
        Principal("ann", wrong)

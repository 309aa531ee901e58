"""The ways into the pages: signing in and out, decision links, errors, files, a prefix, and what no page may hold."""

import re
from typing import Any

import pytest

from adjourn import AgentInit
from adjourn.server import Auth
from server.pages_kit import Page, Visitor, visitor
from server.server_kit import Office, People, app_of, at, bearer


async def linked(people: People, interrupt_id: str, by: str = "erin", **options: Any) -> str:
    body = {"by": by, **options}
    reply = await people["root"]("POST", f"/api/interrupts/{interrupt_id}/links", body)
    assert reply.status_code == 201, reply.text
    return reply.json()["url"].rpartition("/link/")[2]


# -- signing in ------------------------------------------------------------------------------------------------------


async def test_a_stranger_is_led_to_the_sign_in_page_and_back_to_where_he_wanted_to_go(people: People) -> None:
    guest = Visitor(people.client)
    page = await guest.get("/inbox?tool=pay")
    assert "/login?next=/inbox%3Ftool%3Dpay" in page.url
    assert "Sign in" in page.title
    page = await guest.send(page.form("/login"), fields={"token": bearer("root")["authorization"][7:]})
    assert page.url.endswith("/inbox?tool=pay")
    assert page.status == 200


async def test_a_wrong_token_is_told_at_the_field_and_no_cookie_is_set(people: People) -> None:
    guest = Visitor(people.client)
    page = await guest.get("/login")
    page = await guest.send(page.form("/login"), fields={"token": "adj_wrong"})
    assert (page.status, guest.cookies) == (401, {})
    assert "not known here" in page.text
    assert "adj_wrong" not in page.html
    page = await guest.send(page.form("/login"), fields={"token": " "})
    assert page.status == 422
    assert "Enter your access token" in page.text


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/login"]
)
async def test_signing_in_never_leads_elsewhere(people: People, target: str) -> None:
    guest = Visitor(people.client)
    page = await guest.sign_in("root", target)
    assert page.url.endswith("testserver/inbox")
    other = Visitor(people.client)
    form = (await other.get("/login")).form("/login")
    sent = {"token": bearer("root")["authorization"][7:], "next": target}
    assert (await other.send(form, fields=sent)).url.endswith("testserver/inbox")


async def test_signing_out_ends_the_session_even_for_whoever_kept_the_cookie(people: People) -> None:
    root = await visitor(people.client, "root")
    kept = dict(root.cookies)
    page = await root.get("/inbox")
    page = await root.send(page.form("/logout"))
    assert "/login" in page.url
    root.cookies = kept
    assert "/login" in (await root.get("/inbox")).url


async def test_the_printed_link_signs_in_once() -> None:
    auth = Auth()
    async with at(app_of(Office(), auth=auth)) as people:
        code = auth.one_time_code()
        first, second = Visitor(people.client), Visitor(people.client)
        assert (await first.get(f"/signin/{code}")).url.endswith("/inbox")
        page = await second.get(f"/signin/{code}")
        assert page.status == 401
        assert "was used before" in page.text
        assert page.form("/login")


async def test_a_form_without_its_token_is_refused_and_nothing_is_done(people: People) -> None:
    interrupt_id = await people["root"].pause()
    root = await visitor(people.client, "root")
    reply = await root.request("POST", f"/inbox/{interrupt_id}/restart", data={"_version": "x"})
    assert reply.status_code == 403
    assert "text/html" in reply.headers["content-type"]
    assert (await people["root"].get(f"/api/interrupts/{interrupt_id}"))["status"] == "open"


# -- decision links --------------------------------------------------------------------------------------------------


async def test_a_link_shows_one_item_to_whoever_has_it_and_opening_it_decides_nothing(people: People) -> None:
    interrupt_id = await people["ann"].pause("pay 5")
    await people["ann"].pause("pay 6")
    token = await linked(people, interrupt_id)
    guest = Visitor(people.client)
    page = await guest.get(f"/link/{token}")
    assert page.status == 200
    assert "clerk wants to run pay" in page.text
    assert not any(href.startswith(("/inbox/", "/sessions")) for href in page.links.values())
    assert (await people["root"].get(f"/api/interrupts/{interrupt_id}"))["status"] == "open"
    assert "/login" in (await guest.get("/inbox")).url


async def test_a_link_decides_once_under_the_name_it_was_made_for(people: People, office: Office) -> None:
    interrupt_id = await people["ann"].pause("pay 5")
    guest = Visitor(people.client)
    page = await guest.get(f"/link/{await linked(people, interrupt_id)}")
    again = page.form("/restart")
    page = await guest.send(page.form("/restart"))
    assert page.status == 200
    assert "You approved it" in page.text
    history = await people["root"].get(f"/api/interrupts/{interrupt_id}/history")
    assert [(d["verb"], d["by"]) for d in history["items"]] == [("restart", "erin")]
    page = await guest.send(again)
    assert page.status == 410
    assert "This link is no longer good" in page.text
    assert "'pay' was decided. Nothing was done." in page.text


async def test_a_link_allows_only_its_verbs(people: People) -> None:
    interrupt_id = await people["ann"].pause("pay 5")
    guest = Visitor(people.client)
    page = await guest.get(f"/link/{await linked(people, interrupt_id, verbs=['decline'])}")
    assert [f.action.rpartition("/")[2] for f in page.forms if "/link/" in f.action] == ["decline"]
    page = await guest.send(page.form("/decline"), reason="not now")
    assert "You declined it" in page.text


async def test_an_altered_link_is_no_link(people: People) -> None:
    interrupt_id = await people["ann"].pause("pay 5")
    token = await linked(people, interrupt_id)
    page = await Visitor(people.client).get(f"/link/{token[:-3]}abc")
    assert page.status == 404
    assert "No such link" in page.title


# -- errors, files, headers ------------------------------------------------------------------------------------------


async def test_people_get_pages_of_errors_and_programs_get_problems(people: People) -> None:
    root = await visitor(people.client, "root")
    page = await root.get("/inbox/i_unknown")
    assert (page.status, page.title) == (404, "There is no such item · Adjourn")
    page = await root.get("/nothing/here")
    assert page.status == 404
    assert "To the inbox" in page.links
    reply = await people["root"]("GET", "/api/interrupts/i_unknown")
    assert reply.headers["content-type"] == "application/problem+json"
    for path in ("/inbox?cursor=nonsense", "/sessions?cursor=nonsense"):
        assert (await root.get(path)).status == 422
    assert (await root.request("POST", "/inbox/i_x/nonsense")).status_code in (403, 404)


async def test_files_are_kept_for_ever_under_an_address_that_changes_with_them(people: People) -> None:
    guest = Visitor(people.client)
    page = await guest.get("/login")
    addresses = [a["href"] for t, a in page.tags if t == "link"] + [a["src"] for t, a in page.tags if t == "script"]
    assert len(addresses) == 3
    for address in addresses:
        reply = await guest.request("GET", address)
        assert reply.status_code == 200
        assert "immutable" in reply.headers["cache-control"]
    assert (await guest.request("GET", "/static/adjourn.css")).headers["cache-control"] == "no-cache"
    for name in ("../pages.py", "%2e%2e%2fpages.py", "pages.py", "adjourn.css/.."):
        assert (await guest.request("GET", f"/static/{name}")).status_code in (401, 404)


def unsafe(page: Page) -> list[str]:
    """What a strict policy would refuse, or what leads elsewhere."""
    found: list[str] = []
    for tag, attributes in page.tags:
        found += [f"{tag} {name}" for name in attributes if name == "style" or name.startswith("on")]
        if tag in ("style", "iframe", "object", "embed", "base") or (
            tag == "script" and not attributes.get("src", "").startswith("/static/")
        ):
            found.append(tag)
        found += [
            attributes[n]
            for n in ("href", "src", "action", "formaction")
            if re.match(r"(?i)[a-z]+:|//", attributes.get(n, ""))
        ]
    return found


async def test_no_page_holds_a_script_a_style_or_anything_from_elsewhere_and_no_id_twice(people: People) -> None:
    root = await visitor(people.client, "root")
    ids = [await people["root"].pause(text) for text in ("pay 5", "ask why", "ship 7", "pay 6")]
    done = await root.get(f"/inbox/{ids[3]}")
    await root.send(done.form("/restart"))
    session = (await people["root"].get(f"/api/interrupts/{ids[0]}"))["sessionId"]
    addresses = [
        "/inbox", "/inbox?status=all", "/inbox?q=zzz", "/sessions", f"/sessions/{session}", "/inbox/i_unknown",
        *(f"/inbox/{i}" for i in ids),
    ]  # fmt: skip
    for address in addresses:
        page = await root.get(address)
        assert unsafe(page) == [], address
        assert len(page.ids) == len(set(page.ids)), (address, page.ids)
        reply = await root.request("GET", address)
        assert "unsafe-inline" not in reply.headers["content-security-policy"]
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["cache-control"] == "no-store"


async def test_under_a_prefix_every_link_and_form_stays_under_it(office: Office) -> None:
    async with at(app_of(office, root_path="/desk")) as people:
        root = await visitor(people.client, "root", "/desk")
        await office.ai.agents["clerk"].connect(AgentInit(owner="root")).send("pay 5").output
        page = await root.get("/inbox")
        item = next(href for text, href in page.links.items() if text == "pay")
        for address in ("/inbox", "/sessions", item.removeprefix("/desk"), "/inbox/i_unknown"):
            page = await root.get(address)
            inside = [a[n] for _, a in page.tags for n in ("href", "src", "action") if a.get(n, "").startswith("/")]
            assert inside
            assert [href for href in inside if not href.startswith("/desk/")] == []
        page = await root.send((await root.get(item.removeprefix("/desk"))).form("/restart"))
        assert "You approved it" in page.text

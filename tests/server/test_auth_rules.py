"""Who decides: scopes, four eyes, an application's own rules, and what a trusted proxy says."""

from typing import Any

import pytest

from adjourn import InterruptRecord
from adjourn.errors import DefinitionError
from adjourn.server import Auth, Principal, TrustedProxy
from server.server_kit import Office, app_of, at, bearer, token


async def code_of(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json().get("code", "")


async def test_scopes_by_agent_and_tool_bound_what_is_seen_and_decided(office: Office) -> None:
    people_ = (
        token("root", "admin"),
        token("payer", "decide", owners=("*",), tools=("pay",)),
        token("storer", "decide", owners=("*",), agents=("depot",)),
    )
    async with at(app_of(office, people=people_)) as people:
        pay, ship = await people["root"].pause("pay 1"), await people["root"].pause("ship 1", "depot")
        assert [i["id"] for i in (await people["payer"].get("/api/interrupts"))["items"]] == [pay]
        assert [i["id"] for i in (await people["storer"].get("/api/interrupts"))["items"]] == [ship]
        assert (await people["storer"].get("/api/interrupts", params={"count": "true"}))["count"] == 1
        for name, other in (("payer", ship), ("storer", pay)):
            assert (await people[name]("GET", f"/api/interrupts/{other}")).status_code == 404
            assert (await people[name]("POST", f"/api/interrupts/{other}/decline")).status_code == 404
        assert (await people["payer"]("POST", f"/api/interrupts/{pay}/decline")).status_code == 202
        assert [a["name"] for a in (await people["storer"].get("/api/agents"))["items"]] == ["depot"]
        assert (await people["storer"]("POST", "/api/agents/clerk/send", {"message": "x"})).status_code == 404
        assert {s["agent"] for s in (await people["storer"].get("/api/sessions"))["items"]} == {"depot"}


async def test_an_owner_scope_may_name_others_and_those_without_owner(office: Office) -> None:
    people_ = (token("ann"), token("lead", "decide", owners=("ann", "")), token("root", "admin"))
    run = await office.ai.agents["clerk"].connect().send("pay 3").output  # nobody's
    async with at(app_of(office, people=people_)) as people:
        mine = await people["ann"].pause("pay 1")
        await people["root"].pause("pay 2")
        seen = {i["id"] for i in (await people["lead"].get("/api/interrupts"))["items"]}
        assert seen == {mine, run.interrupts[0].id}


async def test_with_four_eyes_the_owner_of_a_session_does_not_decide_on_it(office: Office) -> None:
    auth = Auth(tokens=(token("ann"), token("wide", owners=("*",)), token("root", "admin")), four_eyes=True)
    async with at(app_of(office, auth=auth)) as people:
        run = await people["ann"].say("pay 5")
        one = run["interrupts"][0]["id"]
        for verb in ("restart", "decline"):
            refused = await people["ann"]("POST", f"/api/interrupts/{one}/{verb}")
            assert await code_of(refused) == (403, "forbidden")
        body = {"sessionId": run["sessionId"], "restart": [{"interrupt": one}]}
        assert (await people["ann"]("POST", "/api/agents/clerk/resume", body)).status_code == 403
        bulk = {"tool": "pay", "verb": "restart", "items": [{"id": one}]}
        assert (await people["ann"]("POST", "/api/interrupts/bulk", bulk)).json()["accepted"] == 0
        link = await people["root"]("POST", f"/api/interrupts/{one}/links", {"by": "ann"})
        assert await code_of(link) == (403, "forbidden")
        assert (await people["root"].get(f"/api/interrupts/{one}"))["status"] == "open"
        assert (await people["wide"]("POST", f"/api/interrupts/{one}/restart")).status_code == 202
        own = await people["root"].pause("pay 6")  # also where the owner is an admin
        assert (await people["root"]("POST", f"/api/interrupts/{own}/restart")).status_code == 403


async def test_with_four_eyes_nobody_approves_what_they_keep_themselves(office: Office) -> None:
    async with at(app_of(office, auth=Auth(tokens=(token("ann"),), four_eyes=True))) as people:
        run = await people["ann"].say("pay 5", "loose")
        body = {"state": run["state"], "restart": [{"interrupt": run["interrupts"][0]["id"]}]}
        assert (await people["ann"]("POST", "/api/agents/loose/resume", body)).status_code == 403
        part = run["message"]["content"][0]
        part["metadata"]["resumed"] = True
        wire = {"data": {"resume": {"restart": [part]}}, "init": {"state": run["state"]}}
        by_wire = await people["ann"]("POST", "/genkit/loose", wire)
        assert by_wire.status_code == 403, by_wire.text
        assert office.log == []


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_an_application_has_its_own_rule_of_who_decides(office: Office, is_async: bool) -> None:
    asked: list[tuple[str, str]] = []

    def small(principal: Principal, record: InterruptRecord) -> bool:
        asked.append((principal.name, record.tool))
        asked_for: Any = record.input
        return bool(asked_for["amount"] < 10)

    async def small_async(principal: Principal, record: InterruptRecord) -> bool:
        return small(principal, record)

    auth = Auth(tokens=(token("ann"),), can_decide=small_async if is_async else small)
    async with at(app_of(office, auth=auth)) as people:
        large, little = await people["ann"].pause("pay 50"), await people["ann"].pause("pay 5")
        refused = await people["ann"]("POST", f"/api/interrupts/{large}/restart")
        assert await code_of(refused) == (403, "forbidden")
        assert (await people["ann"]("POST", f"/api/interrupts/{little}/restart")).status_code == 202
        assert asked == [("ann", "pay"), ("ann", "pay")]


async def test_a_rule_that_does_not_say_true_says_no(office: Office) -> None:
    answers: list[Any] = [1, "yes", None, []]
    auth = Auth(tokens=(token("ann"),), can_decide=lambda _, __: answers.pop())
    async with at(app_of(office, auth=auth)) as people:
        one = await people["ann"].pause()
        while answers:
            assert (await people["ann"]("POST", f"/api/interrupts/{one}/restart")).status_code == 403


async def test_a_rule_that_fails_lets_nobody_decide_and_shows_no_trace(office: Office) -> None:
    def broken(principal: Principal, record: InterruptRecord) -> bool:
        raise KeyError("a secret of the rule")

    async with at(app_of(office, auth=Auth(tokens=(token("ann"),), can_decide=broken))) as people:
        one = await people["ann"].pause()
        reply = await people["ann"]("POST", f"/api/interrupts/{one}/restart")
        assert await code_of(reply) == (500, "internal")
        assert "secret of the rule" not in reply.text
        assert (await people["ann"].get(f"/api/interrupts/{one}"))["status"] == "open"


# -- the application's own authentication ----------------------------------------------------------------------------


async def test_an_application_says_itself_who_a_request_is_from(office: Office) -> None:
    def known(request: Any) -> Principal | None:
        who = request.headers.get("x-api-key")
        if who == "banned":
            raise PermissionError("this key was withdrawn")
        return Principal("robot", "decide") if who == "letmein" else None

    async with at(app_of(office, auth=Auth(authenticate=known))) as people:
        me = await people[None].get("/api/me", headers={"x-api-key": "letmein"})
        assert (me["name"], me["role"], me["owners"]) == ("robot", "decide", ["robot"])
        assert (await people[None]("GET", "/api/me")).status_code == 401
        banned = await people[None]("GET", "/api/me", headers={"x-api-key": "banned"})
        assert banned.status_code == 401
        assert "withdrawn" in banned.json()["detail"]
        # What a browser may have sent by itself cannot change anything without our token.
        sent = await people[None]("POST", "/api/agents/clerk/send", {"message": "x"}, headers={"x-api-key": "letmein"})
        assert await code_of(sent) == (403, "csrf")
        given = {"x-api-key": "letmein", "x-csrf-token": me["csrfToken"]}
        assert (
            await people[None]("POST", "/api/agents/clerk/send", {"message": "x"}, headers=given)
        ).status_code == 200


async def test_an_authentication_that_fails_lets_nobody_in(office: Office) -> None:
    def broken(request: Any) -> Principal:
        raise RuntimeError("the directory is away")

    async with at(app_of(office, auth=Auth(authenticate=broken))) as people:
        reply = await people[None]("GET", "/api/interrupts")
        assert await code_of(reply) == (500, "internal")
        assert "directory" not in reply.text


async def test_something_else_than_a_principal_lets_nobody_in(office: Office) -> None:
    def strange(request: Any) -> Any:
        return {"name": "root"}

    async with at(app_of(office, auth=Auth(authenticate=strange))) as people:
        assert (await people[None]("GET", "/api/interrupts")).status_code == 500


# -- proxies ---------------------------------------------------------------------------------------------------------

PROXY = TrustedProxy(
    ("10.0.0.0/8",), role_header="x-groups", roles={"deciders": "decide", "admins": "admin"}, default_role=None
)


async def test_a_trusted_proxy_names_the_person_and_the_groups(office: Office) -> None:
    app = app_of(office, auth=Auth(trusted_proxy=PROXY))
    async with at(app, client=("10.1.2.3", 1)) as people:
        head = {"x-forwarded-user": "ann", "x-groups": "staff, deciders"}
        me = await people[None].get("/api/me", headers=head)
        assert (me["name"], me["role"], me["via"], me["owners"]) == ("ann", "decide", "proxy", ["ann"])
        both = await people[None].get("/api/me", headers={**head, "x-groups": "admins deciders"})
        assert both["role"] == "admin"
        for wrong in ({"x-groups": "deciders"}, {"x-forwarded-user": "ann"}, {**head, "x-groups": "admin"}):
            assert (await people[None]("GET", "/api/me", headers=wrong)).status_code == 401, wrong


async def test_nobody_else_is_believed_who_sends_the_headers_of_the_proxy(office: Office) -> None:
    app = app_of(office, auth=Auth(trusted_proxy=PROXY))
    for peer in ("192.0.2.1", "11.0.0.1", "::1", "not-an-address"):
        async with at(app, client=(peer, 1)) as people:
            head = {"x-forwarded-user": "ann", "x-groups": "admins", "x-forwarded-for": "10.1.2.3"}
            assert (await people[None]("GET", "/api/me", headers=head)).status_code == 401, peer


async def test_a_header_that_came_twice_is_not_the_proxys(office: Office) -> None:
    async with at(app_of(office, auth=Auth(trusted_proxy=PROXY)), client=("10.1.2.3", 1)) as people:
        reply = await people.client.get(
            "/api/me", headers=[("x-forwarded-user", "ann"), ("x-forwarded-user", "root"), ("x-groups", "admins")]
        )
        assert reply.status_code == 401


async def test_what_comes_through_a_proxy_needs_the_csrf_token_to_change_anything(office: Office) -> None:
    async with at(app_of(office, auth=Auth(trusted_proxy=PROXY)), client=("10.1.2.3", 1)) as people:
        head = {"x-forwarded-user": "ann", "x-groups": "deciders"}
        sent = await people[None]("POST", "/api/agents/clerk/send", {"message": "x"}, headers=head)
        assert await code_of(sent) == (403, "csrf")
        csrf = (await people[None].get("/api/me", headers=head))["csrfToken"]
        head["x-csrf-token"] = csrf
        assert (await people[None]("POST", "/api/agents/clerk/send", {"message": "x"}, headers=head)).status_code == 200
        head["x-forwarded-user"] = "ben"  # it is good for one person
        sent = await people[None]("POST", "/api/agents/clerk/send", {"message": "x"}, headers=head)
        assert await code_of(sent) == (403, "csrf")


def test_a_proxy_that_is_no_address_is_refused_at_the_start() -> None:
    with pytest.raises(DefinitionError):
        TrustedProxy(("the-proxy",))


async def test_the_audit_has_the_address_of_the_person_behind_a_trusted_proxy(office: Office) -> None:
    app = app_of(office, trusted_proxies=("10.0.0.0/8",))
    for peer, forwarded, expected in (
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.9", "203.0.113.9"),  # what stands before is the client's own claim
        ("10.0.0.1", "203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("192.0.2.7", "203.0.113.9", "192.0.2.7"),
    ):
        async with at(app, client=(peer, 1)) as people:
            one = await people["ann"].pause()
            head = {**bearer("ann"), "x-forwarded-for": forwarded}
            reply = await people[None]("POST", f"/api/interrupts/{one}/decline", headers=head)
            assert reply.json()["decision"]["address"] == expected

"""Tokens, sessions of browsers, one-time links, and what keeps other sites from using them."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from adjourn.errors import DefinitionError
from adjourn.server import Auth, Principal, mint
from adjourn.server.__main__ import main
from adjourn.server.app import announce
from adjourn.server.seal import Seal
from adjourn.server.tokens import as_toml, find, hashed, read_token_file, read_tokens
from server.server_kit import UNLIMITED, Office, People, app_of, at, bearer, token, words

# -- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_is_kept_as_a_hash_and_found_by_its_text() -> None:
    text, kept = mint("ann", "decide", tools=("pay",))
    assert text not in repr(kept)
    assert len(text) > 40
    assert find([kept], text) is kept
    assert find([kept], text[:-1]) is None
    assert find([], text) is None
    assert kept.principal() == Principal("ann", "decide", tools=frozenset(["pay"]))


def test_a_short_token_of_ones_own_is_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 24"):
        hashed("letmein", "ann")


def test_a_token_file_in_toml_or_json_gives_back_what_was_written(tmp_path: Path) -> None:
    _, one = mint("ann", "decide", agents=("clerk",), owners=("*",))
    _, two = mint("root", "admin", expires=datetime(2030, 1, 1, tzinfo=UTC))
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(one) + "\n\n" + as_toml(two))
    file.chmod(0o600)
    assert read_token_file(file) == [one, two]
    row = f'[\n  {{"name": "ann", "hash": "{one.hash}", "role": "decide", "agents": ["clerk"], "owners": ["*"]}}]'
    assert read_tokens(row, "x") == [one]


@pytest.mark.parametrize(
    "text, says",
    [
        ('[[token]]\nname = "ann"\ntoken = "in-plain-in-plain-in-plain"', "in plain"),
        ('[[token]]\nname = "ann"\nhash = "md5:1"', "sha256"),
        ('[[token]]\nname = "ann"', "hash"),
        ('[[token]]\nname = "ann"\nhash = "x"\nrole = "boss"', "boss"),
        ('[[token]]\nname = "ann"\nhash = "x"\nowner = "ben"', "owner"),
        ("not toml at all", "no list"),
        ('[{"name": 1}]', "no list"),
    ],
    ids=["plain", "other hash", "no hash", "role", "misspelt", "no toml", "json"],
)
def test_a_token_file_that_is_wrong_says_where(text: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        read_tokens(text, "the file")


def test_a_token_file_that_anybody_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(mint("ann")[1]))
    file.chmod(0o666)
    with pytest.raises(DefinitionError, match="chmod"):
        read_token_file(file)
    with pytest.raises(DefinitionError, match="cannot be read"):
        read_token_file(tmp_path / "none")


async def test_the_environment_says_who_may_use_it(office: Office, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(token("ann")))
    file.chmod(0o600)
    environment = {
        "ADJOURN_TOKEN_FILE": str(file),
        "ADJOURN_TOKENS": f'[{{"name": "ben", "hash": "{token("ben").hash}", "role": "view"}}]',
        "ADJOURN_TOKEN": words("boss"),
        "ADJOURN_FOUR_EYES": "1",
    }
    auth = Auth.from_environment(environment)
    assert auth.four_eyes
    assert auth.generated is None
    async with at(app_of(office, auth=auth)) as people:
        found = {name: (await people[name].get("/api/me"))["role"] for name in ("ann", "ben", "boss")}
    assert found == {"ann": "decide", "ben": "view", "boss": "admin"}


async def test_a_token_that_has_expired_is_worth_nothing_nor_is_its_session(office: Office) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    kept = hashed(words("ann"), "ann", "decide", expires=soon)
    async with at(app_of(office, people=(kept,))) as people:
        assert (await people["ann"]("GET", "/api/me")).status_code == 200
    past = hashed(words("ann"), "ann", "decide", expires=datetime.now(UTC) - timedelta(seconds=1))
    async with at(app_of(office, people=(past,))) as people:
        assert (await people["ann"]("GET", "/api/me")).status_code == 401
        assert (await people[None]("POST", "/api/session", {"token": words("ann")})).status_code == 401


def test_the_program_that_makes_tokens_prints_them_once() -> None:
    made = subprocess.run(
        [sys.executable, "-W", "error", "-m", "adjourn.server", "ann", "view"],
        capture_output=True,
        text=True,
        check=True,
    )
    (kept,) = read_tokens(made.stdout, "it")
    text = next(line.strip() for line in made.stderr.splitlines() if line.strip().startswith("adj_"))
    assert find([kept], text) is not None
    assert (kept.name, kept.role) == ("ann", "view")


@pytest.mark.parametrize("arguments", [[], ["ann", "boss"], ["--help"], ["a", "view", "b"]], ids=" ".join)
def test_used_wrongly_it_says_how(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


# -- without configuration -------------------------------------------------------------------------------------------


async def test_without_configuration_a_link_is_shown_once_that_signs_in_once(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    auth = Auth.from_environment({})
    async with at(app_of(office, auth=auth)) as people:
        shown = capsys.readouterr().err
        assert shown.count("/signin/") == 1
        announce(auth, UNLIMITED)
        assert capsys.readouterr().err == ""
        link = next(w for w in shown.split() if "/signin/" in w)
        assert (await people[None]("GET", "/api/interrupts")).status_code == 401
        path = link.removeprefix("http://127.0.0.1:8000")
        once = await people[None]("GET", path)
        assert (once.status_code, once.headers["location"]) == (303, "/inbox")
        assert (await people[None].get("/api/me"))["role"] == "admin"
        people.client.cookies.clear()
        again = await people[None]("GET", path)
        assert again.status_code in (303, 401)
        assert "set-cookie" not in again.headers
        assert (await people[None]("GET", "/api/me")).status_code == 401
        assert auth.generated is not None
        head = {"authorization": f"Bearer {auth.generated}"}
        assert (await people[None].get("/api/me", headers=head))["name"] == "admin"


def test_each_server_without_configuration_makes_a_token_of_its_own() -> None:
    one, other = Auth.from_environment({}), Auth.from_environment({})
    assert one.generated
    assert one.generated != other.generated


# -- sessions of browsers --------------------------------------------------------------------------------------------


async def signed_in(people: People, name: str = "ann") -> tuple[httpx.Response, dict[str, str]]:
    reply = await people[None]("POST", "/api/session", {"token": words(name)})
    assert reply.status_code == 204, reply.text
    me = await people[None].get("/api/me")
    return reply, {"x-csrf-token": me["csrfToken"]}


async def test_signing_in_sets_a_cookie_that_scripts_and_other_sites_do_not_get(people: People) -> None:
    reply, _ = await signed_in(people)
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "path=/" in cookie
    assert "secure" not in cookie
    assert words("ann") not in cookie
    assert (await people[None].get("/api/me"))["via"] == "cookie"


async def test_over_https_the_cookie_is_kept_to_it(office: Office) -> None:
    async with at(app_of(office, public_url="https://inbox.example")) as people:
        reply = await people[None]("POST", "/api/session", {"token": words("ann")})
        assert "secure" in reply.headers["set-cookie"].lower()


async def test_a_wrong_token_signs_nobody_in(people: People) -> None:
    for wrong in (words("nobody"), "", " ", words("ann")[:-1]):
        reply = await people[None]("POST", "/api/session", {"token": wrong})
        assert reply.status_code == 401
        assert "set-cookie" not in reply.headers


async def test_signing_out_ends_the_session_wherever_the_cookie_was_copied_to(people: People) -> None:
    _, csrf = await signed_in(people)
    stolen = people.client.cookies.get("adjourn_session") or ""
    out = await people[None]("DELETE", "/api/session", headers=csrf)
    assert out.status_code == 204
    people.client.cookies.clear()
    head = {"cookie": f"adjourn_session={stolen}"}
    assert (await people[None]("GET", "/api/me", headers=head)).status_code == 401


async def test_a_cookie_that_was_altered_or_signed_elsewhere_is_worth_nothing(people: People) -> None:
    await signed_in(people)
    good = people.client.cookies.get("adjourn_session") or ""
    people.client.cookies.clear()
    body, _, mac = good.partition(".")
    other = Seal([b"another secret of another server"])
    forged = f"{body}.{other.tag('session', body)}"
    for value in (body, f"{body}.", f"{body}.{mac[:-2]}AA", f"x{good}", forged, "", "é"):
        head = {"cookie": f"adjourn_session={value}".encode()}
        assert (await people[None]("GET", "/api/me", headers=head)).status_code == 401, value


async def test_a_session_ends_with_its_token_and_in_time(office: Office) -> None:
    async with at(app_of(office)) as people:
        await signed_in(people)
        cookie = {"cookie": f"adjourn_session={people.client.cookies.get('adjourn_session')}"}
    async with at(app_of(office)) as people:  # another process with the same secret
        assert (await people[None]("GET", "/api/me", headers=cookie)).status_code == 200
    async with at(app_of(office, people=(token("ben"),))) as people:  # the token was taken away
        assert (await people[None]("GET", "/api/me", headers=cookie)).status_code == 401
    async with at(app_of(office, session_seconds=-1)) as people:
        reply = await people[None]("POST", "/api/session", {"token": words("ann")})
        people.client.cookies.clear()  # a browser forgets it; whoever copied it does not
        cookie = {"cookie": reply.headers["set-cookie"].split(";")[0]}
        assert (await people[None]("GET", "/api/me", headers=cookie)).status_code == 401


async def test_too_many_attempts_to_sign_in_are_refused_for_a_while(office: Office) -> None:
    async with at(app_of(office, logins_per_minute=3)) as people:
        for _ in range(3):
            assert (await people[None]("POST", "/api/session", {"token": words("nobody")})).status_code == 401
        for path, body in (("/api/session", {"token": words("ann")}), ("/api/session", {"token": words("nobody")})):
            late = await people[None]("POST", path, body)
            assert (late.status_code, late.json()["code"]) == (429, "too-many-requests")
            assert 1 <= int(late.headers["retry-after"]) <= 60
        wrong = await people[None]("GET", "/api/me", headers={"authorization": f"Bearer {words('nobody')}"})
        assert wrong.status_code == 429
        assert (await people["ann"]("GET", "/api/me")).status_code == 200  # who has a token is not kept out by others


# -- other sites -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"x-csrf-token": ""},
        {"x-csrf-token": "x" * 43},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=["none", "empty", "wrong", "origin", "null", "cross-site", "same-site"],
)
async def test_a_cookie_alone_changes_nothing(people: People, head: dict[str, str]) -> None:
    one = await people["ann"].pause()
    _, csrf = await signed_in(people)
    given = head if "x-csrf-token" in head or not head else {**csrf, **head}
    reply = await people[None]("POST", f"/api/interrupts/{one}/restart", headers=given)
    assert (reply.status_code, reply.json()["code"]) == (403, "csrf")
    assert (await people["ann"].get(f"/api/interrupts/{one}"))["status"] == "open"


@pytest.mark.parametrize(
    "head",
    [{}, {"origin": "http://testserver"}, {"sec-fetch-site": "same-origin", "origin": "http://elsewhere"}],
    ids=["token", "origin", "browser says so"],
)
async def test_with_the_token_of_a_page_it_does(people: People, head: dict[str, str]) -> None:
    one = await people["ann"].pause()
    _, csrf = await signed_in(people)
    reply = await people[None]("POST", f"/api/interrupts/{one}/restart", headers={**csrf, **head})
    assert reply.status_code == 202


async def test_the_csrf_token_of_one_session_is_worth_nothing_in_another(people: People) -> None:
    one = await people["ann"].pause()
    _, csrf = await signed_in(people, "ben")
    people.client.cookies.clear()
    await signed_in(people, "ann")
    reply = await people[None]("POST", f"/api/interrupts/{one}/restart", headers=csrf)
    assert (reply.status_code, reply.json()["code"]) == (403, "csrf")


async def test_a_bearer_needs_no_csrf_token_even_with_a_cookie_beside_it(people: People) -> None:
    one = await people["ann"].pause()
    await signed_in(people)
    head: Any = bearer("ann")
    assert (await people[None]("POST", f"/api/interrupts/{one}/restart", headers=head)).status_code == 202


async def test_another_site_cannot_sign_a_browser_in(people: People) -> None:
    head = {"origin": "http://evil.example"}
    reply = await people[None]("POST", "/api/session", {"token": words("ann")}, headers=head)
    assert (reply.status_code, reply.json()["code"]) == (403, "csrf")

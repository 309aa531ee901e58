"""What the pages are in a real browser: live, still, accessible, readable on a phone, and deaf to what payloads say."""

import random
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from scripts.demo_inbox import STORY

from browser.browser_kit import Person, Place

Make = Callable[..., Place]
Enter = Callable[..., Person]
PHONE = {"width": 360, "height": 740}


def addresses(at: Place) -> list[str]:
    """Every kind of page, in every state there is."""
    decided, gone = at.waiting(tool="refund")[:2]
    at.decide("restart", decided.id)
    at.decide("decline", gone.id, "not now")
    rows = at.waiting()
    return [
        "/inbox", "/inbox?q=nothing&tool=x", "/inbox?status=all", "/inbox?status=expired", "/sessions", "/inbox/i_unknown",
        f"/sessions/{rows[0].session_id}", f"/sessions/{decided.session_id}", f"/inbox/{decided.id}", f"/inbox/{gone.id}",
        *(f"/inbox/{row.id}?open=edit" for row in rows if row.tool != "refund"),
        f"/inbox/{at.one('deploy').id}?open=decline",
    ]  # fmt: skip


def refusals(at: Place, dana: Person) -> Iterator[str]:
    """Pages of what went wrong: an address, or the empty text where the page is there already."""
    page = dana.page
    refund = at.one("refund")
    dana.go(refund)
    page.evaluate("document.querySelectorAll('[name=_version]').forEach(v => v.value = 'another')")
    page.locator("#approve").click()
    page.get_by_role("heading", name="This changed since you opened it").wait_for()
    yield ""
    dana.go(refund)
    page.locator("#decline > summary").click()
    page.locator("#reason").fill("too late")
    form = page.locator("#decline form")
    at.decide("restart", refund.id)
    page.get_by_role("heading", name="This has been settled meanwhile").wait_for()
    yield ""
    form.evaluate("form => form.submit()")
    page.get_by_role("heading", name="somebody else approved this before").wait_for()
    yield ""
    link = at.link(at.one("deploy").id)
    yield f"/link/{link}"
    clock: Any = at.served.ai.clock
    clock.ago = -1200.0  # twenty minutes later
    yield f"/inbox/{at.one('review_order').id}"
    gone = at.waiting(status="expired")[0]
    clock.ago = 0.0
    yield f"/inbox/{gone.id}"
    yield f"/link/{link}"
    yield "/link/nonsense"
    yield "/inbox?cursor=broken"
    yield "/inbox?q=nothing+of+this+kind"
    yield "/sessions/s_unknown"
    page.goto(f"/inbox/{at.one('ask_customer').id}")
    page.get_by_role("button", name="Write JSON instead").click()
    page.locator("#answer").fill("{")
    page.get_by_role("button", name="Send answer").click()
    page.get_by_role("alert").wait_for()
    yield ""
    page.evaluate("document.querySelectorAll('[name=_csrf_token]').forEach(t => t.value = 'another')")
    page.get_by_role("button", name="Send answer").click()
    page.get_by_role("heading", name="This page can no longer be sent").wait_for()
    yield ""
    page.goto("/inbox")
    page.locator(".pick input").nth(0).check()
    page.locator(".pick input").nth(1).check()
    page.get_by_role("button", name="Decline…").click()
    page.get_by_role("alert").wait_for()
    yield ""


def refuse(route: Any) -> None:
    route.abort()


# -- live ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("events", [True, False], ids=["events", "polling"])
def test_the_list_follows_what_happens_without_losing_the_place(place: Make, enter: Enter, events: bool) -> None:
    at = place()
    dana = enter(at, viewport={"width": 900, "height": 400})
    page = dana.page
    if not events:
        page.route("**/api/events", refuse)
        page.reload()
    first, second = at.waiting()[:2]
    third = page.locator(".item").nth(2)
    third.scroll_into_view_if_needed()
    third.get_by_role("link").focus()
    page.wait_for_selector("#live[data-state=live]")
    before = third.bounding_box()
    at.decide("restart", second.id)
    page.wait_for_selector(f"#i-{second.id}.settled")
    new = at.begin("cleo", STORY[1][1])
    page.wait_for_selector(f"#i-{new}")
    assert page.title() == "(9) Inbox · Adjourn"
    assert page.locator("#count").inner_text() == "9"
    assert third.bounding_box() == before
    assert page.evaluate("document.activeElement.closest('.item').dataset.id") == at.waiting()[1].id
    assert page.locator(f"#i-{second.id}").inner_text().count("Decided") == 1
    assert page.locator(f"#i-{second.id} input").count() == 0
    assert page.locator(f"#i-{first.id}.settled").count() == 0


def test_an_empty_inbox_fills_by_itself(place: Make, enter: Enter) -> None:
    at = place(())
    page = enter(at).page
    page.get_by_role("heading", name="Nothing waits for you").wait_for()
    page.wait_for_selector("#live[data-state=live]")
    new = at.begin("ann", STORY[1][1])
    page.wait_for_selector(f"#i-{new}")


@pytest.mark.slow
def test_an_open_item_says_when_somebody_else_settled_it_and_leaves_what_is_typed_alone(
    place: Make, enter: Enter
) -> None:
    at = place()
    refund = at.one("refund")
    page = enter(at, viewport=PHONE).go(refund)
    page.locator("summary", has_text="Respond instead").click()
    page.get_by_label("Answer").scroll_into_view_if_needed()
    page.get_by_label("Answer").fill("half a sent")
    at.decide("decline", refund.id, "no")
    page.get_by_role("heading", name="This has been settled meanwhile").wait_for()
    assert page.locator("#notices").bounding_box()["y"] >= 0
    assert page.locator("#status").inner_text() == "Decided"
    assert page.locator("#approve").is_disabled()
    assert page.get_by_label("Answer").input_value() == "half a sent"
    page.get_by_role("link", name="See what became of it").click()
    page.get_by_role("heading", name="somebody else declined it").wait_for()


@pytest.mark.slow
def test_what_happens_while_live_events_are_only_coming_up_is_not_missed(place: Make, enter: Enter) -> None:
    at = place()
    refund = at.one("refund")
    page = enter(at).page
    held: dict[str, Any] = {}

    def hold_events(route: Any) -> None:
        held["events"] = route

    def hold_row(route: Any) -> None:
        held["row"] = route

    page.route("**/api/events", hold_events)
    page.route("**/inbox/*fragment=row", hold_row, times=1)
    page.goto(f"/inbox/{refund.id}")
    while len(held) < 2:
        page.evaluate("1")
    before = held["row"].fetch()
    at.decide("decline", refund.id, "no")
    with page.expect_response("**/api/events"):
        held["events"].continue_()
    with page.expect_request("**/inbox/*fragment=row", timeout=20_000):  # not only when it looks now and then
        held["row"].fulfill(response=before)
    page.get_by_role("heading", name="This has been settled meanwhile").wait_for()


def test_an_open_item_that_has_to_wait_once_more_can_be_decided_again(place: Make, enter: Enter) -> None:
    at = place()
    refund = at.one("refund")
    page = enter(at).go(refund)
    at.decide("decline", refund.id, "no")
    note = page.get_by_role("heading", name="This has been settled meanwhile")
    note.wait_for()
    at.put(refund)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # so that it looks again at once
    note.wait_for(state="detached")
    assert page.locator("#status").inner_text() == "Waiting"
    assert page.locator("#approve").is_enabled()


def test_what_happens_after_a_decision_is_followed_live_in_the_session_too(place: Make, enter: Enter) -> None:
    at = place()
    refund = at.one("refund")
    dana = enter(at)
    page = dana.page
    page.goto(f"/sessions/{refund.session_id}")
    page.locator(".timeline summary").first.click()
    assert page.locator(".timeline > li").count() == 3
    at.decide("restart", refund.id)
    page.get_by_role("heading", name="The turn is over").wait_for()
    assert page.locator(".timeline > li").count() == 7
    assert page.locator(".timeline details[open]").count() == 1
    assert "Finished" in page.locator(".totals").inner_text()


# -- times -----------------------------------------------------------------------------------------------------------


def test_times_are_relative_with_the_absolute_one_in_the_viewers_zone(place: Make, enter: Enter) -> None:
    at = place()
    page = enter(at, timezone_id="Asia/Tokyo", locale="en-GB").page
    time = page.locator(".item time").first
    assert time.inner_text() == "2 hours ago"
    page.wait_for_function("document.querySelector('.item time').dataset.local")
    assert "GMT+9" in time.get_attribute("title")
    expiry = page.locator("time[data-form=until]")
    shown = expiry.inner_text()
    assert re.fullmatch(r"expires in \d+ (minute|second)s?", shown)


@pytest.mark.slow
def test_without_scripts_times_are_absolute(place: Make, enter: Enter) -> None:
    page = enter(place(), java_script_enabled=False, timezone_id="Asia/Tokyo").page
    assert re.fullmatch(r"\d+ \w{3} \d{4}, \d\d:\d\d UTC", page.locator(".item time").first.inner_text())
    assert not page.locator("#live").is_visible()


# -- looks -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)  # axe looks at everything on twenty pages, on whatever machine this is
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(place: Make, enter: Enter, axe: str, scheme: str) -> None:
    at = place()
    dana = enter(at, color_scheme=scheme)
    dana.context.add_init_script(axe)  # the driver's own way in, which the pages' policy does not reach
    page = dana.page
    # In the dark only the colours are others.
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    rules = (
        rules
        if scheme == "light"
        else {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
    )
    found: list[str] = []

    def look() -> None:
        report: Any = page.evaluate("rules => axe.run(document, rules)", rules)
        for violation in report["violations"]:
            found.extend(f"{page.url} {violation['id']}: {node['html'][:200]}" for node in violation["nodes"])

    for address in addresses(at):
        page.goto(address)
        look()
    page.goto("/inbox")
    page.locator(".pick input").first.check()
    page.keyboard.press("?")
    look()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Approve…").click()
    look()
    page.goto(f"/inbox/{at.one('review_order').id}")
    page.get_by_role("button", name="Send answer").click()
    page.get_by_role("alert").wait_for()
    look()
    page.goto(f"/inbox/{at.one('send_email', 'ann.oakley').id}")
    page.get_by_text("Change the input first").click()
    page.get_by_label("Subject").fill("Something else")
    page.get_by_role("button", name="Review the change").click()
    page.get_by_role("heading", name="1 difference").wait_for()
    look()
    for address in refusals(at, dana):
        if address:
            page.goto(address)
        look()
    page.goto("/inbox")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    look()
    page.get_by_label("Access token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.locator("#token-error").wait_for()
    look()
    assert found == []


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone_and_everything_can_be_hit(place: Make, enter: Enter) -> None:
    at = place()
    page = enter(at, viewport=PHONE, has_touch=True).page
    small = """() => [...document.querySelectorAll('a, button, input, select, summary, textarea')]
        .filter(e => e.checkVisibility() && !e.closest('.hide, p, li, td, dd, .skip'))
        .map(e => [e.outerHTML.slice(0, 80), e.closest('label') ?? e])
        .filter(([, e]) => { const b = e.getBoundingClientRect(); return b.width && (b.width < 24 || b.height < 24); })
        .map(([html]) => html)"""
    for address in addresses(at):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
        assert page.evaluate(small) == [], address


@pytest.mark.slow
def test_what_became_of_an_item_is_in_sight_on_a_phone_however_long_its_input_is(place: Make, enter: Enter) -> None:
    at = place(tuple(STORY[:1]))
    email = at.one("send_email")
    at.put(replace(email, input={**email.input, "body": "line\n" * 500}))
    page = enter(at, viewport=PHONE, has_touch=True).go(email)
    page.get_by_role("link", name="Decide").click()
    page.get_by_role("button", name="Approve").click()
    told = page.get_by_role("heading", name="You approved it.")
    told.wait_for()
    assert told.bounding_box()["y"] < PHONE["height"]


def test_nothing_moves_while_a_page_loads(place: Make, enter: Enter) -> None:
    at = place()
    dana = enter(at)
    dana.context.add_init_script(
        "window.shift = 0; new PerformanceObserver(l => { for (const e of l.getEntries()) window.shift += e.value; })"
        ".observe({type: 'layout-shift', buffered: true})"
    )
    page = dana.page
    for address in ("/inbox", f"/inbox/{at.one('deploy').id}", f"/sessions/{at.one('deploy').session_id}"):
        page.goto(address)
        page.wait_for_function("document.querySelector('time').dataset.local")
        assert (
            page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(shift))))") < 0.01
        )


def test_what_has_the_focus_is_not_behind_the_bar_of_the_list(place: Make, enter: Enter) -> None:
    page = enter(place(), viewport={"width": 1024, "height": 480}).page
    page.locator(".pick input").first.check()
    for _ in range(page.locator(".item").count()):
        page.keyboard.press("j")
        focused = page.evaluate("document.activeElement.closest('.item').getBoundingClientRect().bottom")
        assert focused <= page.locator(".bulk").bounding_box()["y"]


DEEP = {"a": {"b": {"c": {"d": {"e": "a few words that need some room"}, "list": [{"id": 1, "name": "row"}]}}}}


@pytest.mark.parametrize("width", [1440, 1024, 360])
def test_deep_values_have_room_to_be_read(place: Make, enter: Enter, width: int) -> None:
    at = place(tuple(STORY[1:2]))
    refund = at.one("refund")
    at.put(replace(refund, input=DEEP))
    page = enter(at, viewport={"width": width, "height": 800}).go(refund)
    words = page.locator(".input .str", has_text="a few words")
    assert words.bounding_box()["width"] > 90
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_megabyte_is_shown_and_edited_in_time(place: Make, enter: Enter) -> None:
    at = place(tuple(STORY[:1]))
    email = at.one("send_email")
    at.put(replace(email, input={**email.input, "body": "A" * 1_000_000}))
    page = enter(at).go(email)
    assert "996,000 more characters" in page.locator(".input").inner_text()
    page.get_by_text("Change the input first").click()
    page.get_by_label("Subject").fill("Shorter")
    page.get_by_role("button", name="Review the change").click()
    page.get_by_role("heading", name="1 difference").wait_for()


# -- hostile payloads ------------------------------------------------------------------------------------------------

PIECES = (
    "<script>hacked=1</script>", "</script><script>hacked=1</script>", "<img src=x onerror=hacked=1>",
    "<svg/onload=hacked=1>", "\"><iframe src=javascript:hacked=1>", "' autofocus onfocus='hacked=1", "javascript:hacked=1",
    "</textarea><script>hacked=1</script>", "</title></style><script>hacked=1</script>", "<style>body{display:none}</style>",
    "<base href=//evil.example>", "{{7*7}}", "{% raw %}", "<!--", "]]>", "&lt;script&gt;", "&#x3c;script&#x3e;",
    "<form action=//evil.example><button>", "<meta http-equiv=refresh content=0>", "\u202e", "\u2066", "\u200b", "\ufeff",
    "\U000e0041", "\x1b[2J", "\x07", "\r", "\n\n", "\t", "\x00", "e\u0301" * 3 + "\u0301" * 30, "p\u0430ypal", "A" * 900,
    "\\u003cscript\\u003e", "on", "$.to", "_csrf_token", "</li></ol></main>", "<a href=//evil.example>x</a>", "\u2028",
)  # fmt: skip
OURS = (
    "[...document.scripts].every(s => s.src.startsWith(location.origin + '/static/')) && document.scripts.length === 1"
)
THEIRS = "document.querySelectorAll('iframe, base, style, img, object, [onload], [onerror], [onfocus]').length"


def hostile(dice: random.Random, depth: int = 0) -> Any:
    """Any JSON value, made of what has broken pages before."""
    kind = dice.random()
    if depth > 2 or kind < 0.5:
        return "".join(dice.choices(PIECES, k=dice.randint(1, 6)))
    if kind < 0.7:
        return {hostile(dice, 3): hostile(dice, depth + 1) for _ in range(dice.randint(0, 3))}
    if kind < 0.9:
        return [hostile(dice, depth + 1) for _ in range(dice.randint(0, 3))]
    plain: list[Any] = [None, True, 0, -1.5, "", [], {}, 2**53, "0"]
    return dice.choice(plain)


@pytest.mark.slow
def test_whatever_a_payload_says_it_is_text_and_runs_nothing(place: Make, enter: Enter) -> None:
    at = place(tuple(STORY[:2]))
    dice = random.Random(20)
    pattern = at.one("refund")

    def put(tx: Any) -> None:
        for n in range(24):
            bad = [hostile(dice) for _ in range(6)]
            name = [str(b)[:60] for b in bad]
            texts = {"a": {"enum": name}, name[4]: {"type": "string", "description": name[5]}}
            row = replace(
                pattern,
                id=f"i_{n:032x}",
                created=pattern.created + n,
                tool=name[0] if n % 3 else "send_email",
                owner=name[1],
                input=bad[2] if n % 2 else {"to": bad[2], "body": bad[3]},
                payload=bad[4],
                ref=name[5],
                on_expiry={"respond": bad[5]},
                reason=["tool", "error", "outcome_unknown", "approval"][n % 4],
                path=(name[2],) if n % 5 == 0 else (),
                response={"type": "object", "title": name[3], "properties": texts} if n % 2 else None,
            )
            tx.put_interrupt(row)

    at.served.ai.stores()[0].submit(put).result()
    dana = enter(at)
    page = dana.page
    shown = 0
    query = urlencode({"q": PIECES[0], "tool": PIECES[4] + PIECES[2], "status": PIECES[5]})
    for address in ("/inbox", f"/inbox?{query}", *(f"/inbox/i_{n:032x}?open=edit" for n in range(24))):
        reply = page.goto(address)
        assert reply.status == 200, address
        assert page.evaluate(OURS), address
        assert page.evaluate(THEIRS) == 0, address
        text = page.evaluate("document.body.innerText")
        assert not set(text) & set("\u202e\u2066\u200b\ufeff\x1b\x07"), address
        shown += text.count("hacked=1")
    assert shown > 100
    page.goto("/inbox/i_" + f"{2:032x}")
    page.locator("#approve").click()
    page.wait_for_selector("#after, .note")

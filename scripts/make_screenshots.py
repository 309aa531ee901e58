"""Takes the pictures in docs/images with the demo inbox and the Chromium of the system.

python scripts/make_screenshots.py            the few that the documentation shows
python scripts/make_screenshots.py --all DIR  every page in every state, wide and phone, light and dark, to look at
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.demo_inbox import STORY, Served, ShiftedClock, application, fill, serve

from adjourn import MemoryStore

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 360, "height": 740}
Shoot = Callable[[str, Page], None]


def chromium() -> str:
    """Where the system's Chromium is."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    return found


def signed_in(browser: Browser, served: Served, name: str, **options: Any) -> BrowserContext:
    """A browser profile in which this person is signed in."""
    context = browser.new_context(base_url=served.address, **options)
    page = context.new_page()
    page.goto("/login")
    page.fill("#token", served.tokens[name])
    page.click("button.go")
    page.wait_for_url("**/inbox")
    page.close()
    return context


def open_item(page: Page, tool: str, text: str = "") -> None:
    """Opens the first item of this tool, or the one with the text."""
    page.goto("/inbox")
    page.locator(".item", has_text=text or tool).filter(has=page.locator("a", has_text=tool)).first.locator("a").click()
    page.wait_for_selector(".ask")


def every_state(served: Served, context: BrowserContext, shoot: Shoot) -> None:
    """All there is to see, in an order in which it can be seen."""
    page = context.new_page()
    page.goto("/inbox")
    page.wait_for_selector("[data-state=live]")
    shoot("list", page)
    page.check(".item:nth-child(2) .pick input")
    page.check(".item:nth-child(3) .pick input")
    shoot("list-picked", page)
    page.click(".bulk .go")
    shoot("bulk-confirm", page)
    page.go_back()
    page.check(".item:nth-child(1) .pick input")
    page.click(".bulk .no")
    shoot("bulk-mixed", page)
    page.goto("/inbox?q=nothing+like+this&tool=x")
    shoot("list-no-match", page)
    page.goto("/inbox?status=cancelled")
    shoot("list-none", page)
    open_item(page, "send_email", "ann.oakley")
    shoot("item", page)
    page.click("#edit > summary")
    shoot("item-edit", page)
    page.fill("[name='$.to']", "ann@example.com")
    page.fill("[name='$.body']", "I am sorry that your order arrived broken.\nWe pay back 50 euros.")
    page.fill("#metadata", "Checked by phone")
    page.click("#edit button.wide")
    shoot("item-review", page)
    open_item(page, "review_order")
    shoot("item-form", page)
    page.click("button[name=_add]")
    page.fill("[name='$.discount']", "a lot")
    page.click("#respond button.wide:not(.hide)")
    shoot("item-form-errors", page)
    page.click("button[name=_switch]")
    shoot("item-json", page)
    open_item(page, "deploy")
    page.click("#decline > summary")
    shoot("item-decline", page)
    open_item(page, "sync_stock")
    shoot("item-error", page)
    open_item(page, "send_email", "onerror")
    shoot("item-hostile", page)
    open_item(page, "ask_customer")
    shoot("item-question", page)
    open_item(page, "refund", "lost in the mail")
    other = context.new_page()
    other.goto(page.url)
    other.click("#approve")
    other.wait_for_selector("#state:not(:has([data-running]))")
    shoot("item-approved", other)
    page.wait_for_selector("#notices .note")
    shoot("item-meanwhile", page)
    page.click("#decline > summary")
    page.fill("#reason", "It arrived after all.")
    with page.expect_navigation():  # as somebody does whose page has not heard of it yet
        page.evaluate("document.querySelector('#decline form').requestSubmit()")
    shoot("item-conflict", page)
    page.goto("/inbox?status=resolved")
    shoot("list-decided", page)
    page.goto("/sessions")
    shoot("sessions", page)
    page.locator("table a").nth(2).click()
    page.wait_for_selector(".timeline")
    shoot("session", page)
    page.goto("/inbox/i_unknown")
    shoot("error", page)
    page.goto("/inbox")
    page.check(".item:nth-child(2) .pick input")
    page.check(".item:nth-child(3) .pick input")
    page.click(".bulk .no")
    page.click("main button.no")
    shoot("bulk-done", page)
    page.goto("/inbox")
    page.keyboard.press("?")
    shoot("keys", page)
    cookies: Any = context.cookies()
    context.clear_cookies()
    page.goto("/login")
    page.fill("#token", "adj_wrong")
    page.click("button.go")
    shoot("login", page)
    bare = context.browser
    assert bare is not None
    plain = signed_in(bare, served, "vic", viewport=page.viewport_size, java_script_enabled=False)
    looker = plain.new_page()
    looker.goto("/inbox")
    shoot("list-no-script", looker)
    open_item(looker, "deploy")
    shoot("item-view-only", looker)
    plain.close()
    link = served.run(_link(served))
    page.goto(f"/link/{link}")
    shoot("link", page)
    clock: Any = served.ai.clock
    clock.ago = -1200.0  # twenty minutes later
    page.goto(f"/link/{link}")
    shoot("link-expired", page)
    context.add_cookies(cookies)
    page.goto("/inbox?status=expired")
    shoot("list-expired", page)
    page.locator(".item a").first.click()
    shoot("item-expired", page)


async def _link(served: Served) -> str:
    rows = (await served.ai.inbox.list(tool="deploy")).items
    from adjourn.server.principal import Principal

    return await served.desk.make_link(Principal("root", "admin"), rows[0].id, by="erin")


def world() -> Served:
    """A fresh server with the whole story."""
    ai = application(MemoryStore(), STORY, ShiftedClock())
    served = serve(ai, {"dana": "admin", "vic": "view"})
    served.run(fill(ai))
    return served


def take_all(browser: Browser, folder: Path, only: str) -> None:
    """Every state in all four looks."""
    for size, name in ((WIDE, "wide"), (PHONE, "phone")):
        for scheme in ("light", "dark"):
            look = f"{name}-{scheme}"
            if only and only not in look:
                continue
            served = world()
            context = signed_in(browser, served, "dana", viewport=size, color_scheme=scheme)

            def shoot(state: str, page: Page, look: str = look) -> None:
                page.wait_for_load_state()
                page.screenshot(path=folder / f"{state}-{look}.png", full_page=True)

            every_state(served, context, shoot)
            context.close()
            served.stop()


def take_for_docs(browser: Browser) -> None:
    """The few pictures of the documentation."""
    wanted = {
        "list": "inbox",
        "item": "item",
        "item-form-errors": "form",
        "item-review": "review",
        "session": "session",
    }
    for scheme in ("light", "dark"):
        served = world()
        context = signed_in(browser, served, "dana", viewport={"width": 1200, "height": 780}, color_scheme=scheme)

        def shoot(state: str, page: Page, scheme: str = scheme) -> None:
            if state in wanted and (scheme == "light" or state == "item"):
                suffix = "" if scheme == "light" else "-dark"
                page.screenshot(path=IMAGES / f"{wanted[state]}{suffix}.png")

        every_state(served, context, shoot)
        context.close()
        served.stop()
    served = world()
    context = signed_in(browser, served, "dana", viewport=PHONE)
    page = context.new_page()
    open_item(page, "send_email", "ann.oakley")
    page.screenshot(path=IMAGES / "item-phone.png")
    context.close()
    served.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", help="only looks with this in their name, such as wide-light")
    given = parser.parse_args()
    folder: Path = given.all or IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        if given.all:
            take_all(browser, folder, given.only)
        else:
            take_for_docs(browser)
        browser.close()


if __name__ == "__main__":
    main()

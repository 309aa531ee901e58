"""A Chromium of the system, and servers with the demo inbox. Without either, these tests say loudly that they did not run."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts.demo_inbox import STORY, Chapter, Served, ShiftedClock, application, fill, serve

from adjourn import Adjourn, MemoryStore
from browser.browser_kit import Person, Place

ROOT = Path(__file__).resolve().parent.parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            # One process has the browser; a second one would only take its time.
            item.add_marker(pytest.mark.xdist_group("browser"))


# Not for the whole session: while it is open, Playwright keeps an event loop running in this thread, and tests of other
# files could not run theirs.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    found = os.environ.get("ADJOURN_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("THE PAGES ARE NOT TESTED IN A BROWSER: no chromium here; apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="THE PAGES ARE NOT TESTED IN A BROWSER: no playwright")
    with sync_api.sync_playwright() as playwright:
        # No sandbox: the tests may run as root, and load nothing but our own pages.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which npm brings."""
    named = os.environ.get("ADJOURN_TEST_AXE")
    path = Path(named) if named else ROOT / ".genkit" / "node" / "node_modules" / "axe-core" / "axe.min.js"
    if not path.is_file():
        pytest.skip("ACCESSIBILITY IS NOT TESTED: no axe-core here; run scripts/web_clients.py")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """One server for all: making one takes longer than most tests."""
    found = serve(application(MemoryStore(), STORY, ShiftedClock()), {"dana": "admin", "erik": "admin", "vic": "view"})
    yield found
    found.stop()


@pytest.fixture
def place(served: Served) -> Iterator[Callable[..., Place]]:
    """Fills the server with sessions that have come to rest. They are gone after the test."""

    def fill_up(story: tuple[Chapter, ...] = tuple(STORY)) -> Place:
        served.run(fill(served.ai, story))
        return Place(served)

    yield fill_up
    served.run(empty(served.ai))


async def empty(ai: Adjourn) -> None:
    for session in await ai.sessions.list(limit=1000):
        await ai.sessions.delete(session.id, force=True)


@pytest.fixture
def enter(chromium: Any) -> Iterator[Callable[..., Person]]:
    """Lets somebody open a browser of their own and sign in. What goes wrong in a page fails the test at its end."""
    people: list[Person] = []

    def go(place: Place, name: str = "dana", **options: Any) -> Person:
        person = Person(chromium, place, name, **options)
        people.append(person)
        person.sign_in()
        return person

    yield go
    troubles = [trouble for person in people for trouble in person.troubles]
    for person in people:
        person.context.close()
    assert troubles == []

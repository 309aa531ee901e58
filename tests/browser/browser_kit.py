"""People with browsers, and the places they go to."""

from typing import Any

from scripts.demo_inbox import Served, begin

from adjourn.server.principal import Principal
from adjourn.store import InterruptRecord


class Place:
    """A server and what waits at it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.address = served.address

    def waiting(self, **wanted: Any) -> list[InterruptRecord]:
        return list(self.served.run(self.served.ai.inbox.list(**wanted)).items)

    def one(self, tool: str, text: str | None = None) -> InterruptRecord:
        return self.waiting(tool=tool, text=text)[0]

    def row(self, interrupt_id: str) -> InterruptRecord:
        return self.served.run(self.served.ai.inbox.get(interrupt_id))

    def history(self, interrupt_id: str) -> list[Any]:
        return list(self.served.run(self.served.ai.inbox.history(interrupt_id)))

    def decide(self, verb: str, interrupt_id: str, *given: Any) -> None:
        inbox = self.served.ai.inbox
        self.served.run(getattr(inbox, verb)(interrupt_id, *given, by="somebody else"))

    def put(self, record: InterruptRecord) -> None:
        """Has the store hold this instead of what it holds."""
        self.served.ai.stores()[0].submit(lambda tx: tx.put_interrupt(record)).result()

    def link(self, interrupt_id: str) -> str:
        return self.served.run(self.served.desk.make_link(Principal("root", "admin"), interrupt_id, by="erin"))

    def begin(self, owner: str, words: str) -> str:
        return self.served.run(begin(self.served.ai, owner, words)).interrupts[0].id


class Person:
    """Somebody with a browser. `troubles` are things that must not happen in any page: errors, refused scripts, dialogs,
    and requests that go elsewhere.
    """

    def __init__(self, browser: Any, place: Place, name: str, **options: Any) -> None:
        self.place = place
        self.name = name
        self.troubles: list[str] = []
        self.context = browser.new_context(base_url=place.address, **options)
        self.context.set_default_timeout(30_000)
        # Whatever sets it was a script of somebody else's.
        self.context.add_init_script(
            "Object.defineProperty(window, 'hacked', {set() { console.error('A SCRIPT RAN'); }})"
        )
        self.page = self.open()

    def open(self) -> Any:
        page = self.context.new_page()
        page.on("pageerror", self._broke)
        page.on("dialog", self._popped_up)
        page.on("console", self._said)
        page.on("request", self._asked)
        return page

    def _broke(self, error: Any) -> None:
        self.troubles.append(f"error: {error}")

    def _popped_up(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _said(self, message: Any) -> None:
        # A reply that is no success is told on the console, too; the tests look at what the page makes of it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.place.address, "data:")):
            self.troubles.append(f"request: {request.url}")

    def sign_in(self) -> None:
        """Has signed in already, as far as the browser knows: that form has a test of its own."""
        auth = self.place.served.desk.auth
        value = auth.sign_in(self.place.served.tokens[self.name], "local")
        self.context.add_cookies([{"name": auth.settings.cookie_name, "value": value, "url": self.place.address}])
        self.page.goto("/inbox")

    def go(self, record: InterruptRecord) -> Any:
        self.page.goto(f"/inbox/{record.id}")
        return self.page

    def rested(self) -> None:
        """Waits until the page says that the agent has come to rest."""
        self.page.wait_for_selector("#state:not(:has([data-running]))")

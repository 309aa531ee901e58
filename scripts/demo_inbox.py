"""An application with everything that an inbox may hold, on scripted models: for screenshots, browser tests and a look around.

    python scripts/demo_inbox.py [port]

prints the address of a server with it.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, TypeVar

import uvicorn
from msgspec.structs import replace
from pydantic import BaseModel, Field

from adjourn import Adjourn, AgentInit, Interrupt, MemoryStore, ToolRunContext
from adjourn.clock import SystemClock
from adjourn.model import as_reply
from adjourn.parts import Message, Usage
from adjourn.server import Auth, Desk, ServerSettings, create_app, mint
from adjourn.server.principal import Role
from adjourn.store import Store
from adjourn.testing import ScriptedModel, call

T = TypeVar("T")


class Card(BaseModel):
    kind: Literal["card"]
    last_four: Annotated[str, Field(min_length=4, max_length=4, description="The last four digits of the number")]


class Transfer(BaseModel):
    kind: Literal["transfer"]
    iban: str


class Line(BaseModel):
    sku: str
    quantity: Annotated[int, Field(ge=1, le=100)] = 1


class Verdict(BaseModel):
    """What a person says about an order."""

    accepted: bool
    priority: Literal["low", "normal", "high"] = "normal"
    deliver_on: Annotated[date | None, Field(description="Left empty: as soon as possible")] = None
    discount: Annotated[float, Field(ge=0, le=50, description="In percent")] = 0
    lines: Annotated[list[Line], Field(description="What is sent in fact")] = []
    pay_by: Annotated[Card | Transfer, Field(discriminator="kind")]
    note: str | None = None


class Order(BaseModel):
    customer: str
    wants: list[Line]


class Question(BaseModel):
    question: str


HOSTILE = (
    '<script>parent.hacked=1</script><img src=x onerror="hacked=1">{{7*7}}\u202egnp.exe\u202c \u200bpay\u200bpal '
    "\x1b[31mred\x1b[0m p\u0430ypal.com <!--"
)


class ShiftedClock(SystemClock):
    """The real time, some seconds ago: so that what is made for show has an age."""

    def __init__(self) -> None:
        self.ago = 0.0

    def now(self) -> float:
        return super().now() - self.ago


def application(store: Store, story: "Sequence[Chapter]", clock: ShiftedClock | None = None) -> Adjourn:
    """An application whose agent answers as the story has it: by what was said last, and how far it has come since."""
    scripts = {words: replies for _, words, replies, _ in story}

    def reply(request: Any) -> Any:
        messages: Sequence[Message] = request.messages
        said = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
        replies = scripts.get(messages[said].text if said >= 0 else "", ("All done.",))
        given = sum(m.role == "model" for m in messages[said + 1 :])
        words = 40 + sum(len(m.text) for m in messages)
        made = as_reply(replies[min(given, len(replies) - 1)])
        return replace(made, usage=Usage(input_tokens=words, output_tokens=20 + len(made.message.text)))

    ai = Adjourn(model=ScriptedModel([reply], repeat_last=True), clock=clock or ShiftedClock())

    @ai.tool()
    async def send_email(to: str, subject: str, body: str, ctx: ToolRunContext) -> dict[str, str]:
        """Sends an email from the support address.

        It goes out at once and cannot be called back. A copy is kept in the archive.

        Args:
            to: The one address that it goes to.
            subject: What it is about, in a few words.
            body: The whole text, without a greeting of its own.
        """
        if not ctx.is_resumed():
            raise Interrupt({"goes_to": to, "cannot_be_undone": True})
        return {"status": "sent", "to": to}

    @ai.tool(approval=True)
    async def refund(order: int, euros: float, reason: str = "") -> str:
        """Pays money back to the customer's card. It arrives within two days."""
        return f"{euros} euros are on their way for order {order}"

    @ai.tool()
    async def look_up_order(order: int) -> dict[str, Any]:
        """Finds an order by its number."""
        return {"order": order, "customer": "Ann Oakley", "state": "delivered", "euros": 400}

    @ai.tool()
    async def deploy(version: str, ctx: ToolRunContext) -> str:
        """Puts a version of the shop into production."""
        if not ctx.is_resumed():
            raise Interrupt({"version": version}, expires_in=600)
        return f"{version} is live"

    @ai.tool(on_error="interrupt")
    async def sync_stock(warehouse: str) -> str:
        """Fetches the stock levels of a warehouse."""
        raise ConnectionError(f"warehouse {warehouse} does not answer (503)")

    ai.define_interrupt("review_order", "Asks a person to go over an order before it is packed.", Order, Verdict)
    ai.define_interrupt("ask_customer", "Asks a person a question in plain words.", Question)
    ai.define_agent("support", system="You help customers.", store=store)
    return ai


EMAIL = {
    "to": "ann.oakley@example.com",
    "subject": "Your order 17",
    "body": "I am sorry that your order arrived broken.\nWe pay back 40 euros; they arrive within two days.\n\nYour support",
}
ORDER = {"customer": "Ann Oakley", "wants": [{"sku": "CUP-3", "quantity": 4}, {"sku": "POT-1", "quantity": 1}]}
Chapter = tuple[str, str, Sequence[Any], float]
"""Who owns a session, what is said, what the model answers in turn, and how many seconds ago."""
STORY: Sequence[Chapter] = (
    (
        "ann",
        "My order 17 arrived broken. Can you help?",
        (
            call("look_up_order", {"order": 17}, "a1"),
            call("send_email", EMAIL, "a2"),
            "Done. Ann has been told, and the money is on its way.",
        ),
        7300.0,
    ),
    (
        "ann",
        "Please pay back order 17.",
        (call("refund", {"order": 17, "euros": 40.0, "reason": "arrived broken"}, "b1"), "40 euros are on their way."),
        2760.0,
    ),
    (
        "ben",
        "And order 21, it never came.",
        (
            call("refund", {"order": 21, "euros": 129.9, "reason": "lost in the mail"}, "b2"),
            "129.90 euros are on their way.",
        ),
        2700.0,
    ),
    (
        "cleo",
        "Order 22 came twice, I sent one back.",
        (call("refund", {"order": 22, "euros": 59.0, "reason": "sent back"}, "b3"), "59 euros are on their way."),
        2650.0,
    ),
    (
        "ann",
        "I would like four cups and a pot.",
        (call("review_order", ORDER, "c1"), "Your order is being packed."),
        1500.0,
    ),
    ("ben", "Release the shop.", (call("deploy", {"version": "2.4.1"}, "d1"), "2.4.1 is live."), 420.0),
    (
        "ben",
        "What does the customer want?",
        (call("ask_customer", {"question": "Which colour should the cups have?"}, "e1"), "Blue it is."),
        200.0,
    ),
    (
        "cleo",
        "Is there enough stock in Lyon?",
        (call("sync_stock", {"warehouse": "Lyon"}, "f1"), "I could not find out."),
        95.0,
    ),
    (
        "ben",
        HOSTILE,
        (call("send_email", {"to": "ann@p\u0430ypal.com", "subject": HOSTILE, "body": HOSTILE * 3}, "g1"), "Sent."),
        40.0,
    ),
)


async def begin(ai: Adjourn, owner: str, words: str) -> Any:
    """One session, until it waits."""
    session = ai.agents["support"].connect(AgentInit(owner=owner))
    await session.send(words).output
    return session


async def fill(ai: Adjourn, story: Sequence[Chapter] = STORY) -> list[Any]:
    """All sessions of a story; what was said longest ago first."""
    clock = ai.clock
    assert isinstance(clock, ShiftedClock)
    sessions: list[Any] = []
    for owner, words, _, ago in story:
        clock.ago = ago
        sessions.append(await begin(ai, owner, words))
    clock.ago = 0.0
    return sessions


@dataclass
class Served:
    """A running server: its address, the application, and a token by name."""

    address: str
    ai: Adjourn
    desk: Desk
    tokens: dict[str, str]
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something in the server's own event loop, and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


def serve(
    ai: Adjourn,
    people: Mapping[str, Role],
    *,
    port: int = 0,
    settings: ServerSettings | None = None,
    **auth: Any,
) -> Served:
    """A server in a thread of its own, for these people, who see everything."""
    minted = {name: mint(name, role, owners=["*"]) for name, role in people.items()}
    app = create_app(
        ai,
        Auth(tokens=[token for _, token in minted.values()], **auth),
        settings=settings
        or ServerSettings(secret="a secret for show", requests_per_minute=0, requests_per_minute_per_address=0),
    )
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", ws="none"))
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        thread.join(0.02)
    number = server.servers[0].sockets[0].getsockname()[1]

    def stop() -> None:
        server.should_exit = True
        thread.join(20)

    tokens = {name: plain for name, (plain, _) in minted.items()}
    return Served(f"http://127.0.0.1:{number}", ai, app.state.desk, tokens, loops[0], stop)


def main() -> None:
    """Serves it until it is interrupted."""
    ai = application(MemoryStore(), STORY, ShiftedClock())
    served = serve(ai, {"dana": "admin", "vic": "view"}, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
    served.run(fill(ai))
    for name, token in served.tokens.items():
        print(f"{served.address}/login as {name}: {token}")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        served.stop()


if __name__ == "__main__":
    main()

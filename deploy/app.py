"""The application that this folder deploys: an agent of a refund desk. Put your own in its place.

    adjourn serve app:make      adjourn worker app:make      python app.py (the server behind a proxy that signs people in)

It runs as it is: the model is a script, which needs no key and no network. What it takes from its environment:

    ADJOURN_STORE             a file, or postgresql://user@host/database (the command line reads it as well)
    APP_STORE_PASSWORD_FILE   a file with the database's password, so that it stands in no variable
    APP_SECRET_FILE           a file with the secret that signs cookies and links: one a line, the first signs, all are known
    APP_LISTEN                for `python app.py`: where it listens (127.0.0.1:8000)
    APP_PROXY_ADDRESSES       for `python app.py`: whose X-Forwarded-User is believed, with commas
    APP_PROXY_ROLE            for `python app.py`: the role of everybody whom it names (decide)
    APP_WEBHOOK_URL           for `python app.py`: who is told of pauses and decisions, signed with APP_WEBHOOK_SECRET_FILE
    APP_WEBHOOK_ALLOW         private networks that the webhook may be in, with commas
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adjourn import Adjourn, ToolRunContext
from adjourn.logs import Logs
from adjourn.model import Emit, ModelRequest
from adjourn.parts import Chunk, Part
from adjourn.server.webhooks import Webhook
from adjourn.store import Store
from adjourn.testing import call


def secrets(variable: str) -> list[str]:
    """The lines of the file that a variable names; none where it is not set."""
    path = os.environ.get(variable)
    return Path(path).read_text(encoding="utf-8").split() if path else []


def words(variable: str, otherwise: str = "") -> list[str]:
    """What a variable lists, with commas between."""
    return [w.strip() for w in os.environ.get(variable, otherwise).split(",") if w.strip()]


def store() -> Store:
    """Where the sessions are. Every process of a deployment names the same place."""
    place = os.environ.get("ADJOURN_STORE", "sessions.db")
    if place.startswith(("postgresql://", "postgres://")):
        from psycopg.conninfo import make_conninfo

        from adjourn.stores.postgres import PostgresStore

        password = secrets("APP_STORE_PASSWORD_FILE")
        # Eight connections a process, and one that listens: all processes together must fit into max_connections.
        return PostgresStore(make_conninfo(place, password=password[0]) if password else place, connections=8)
    from adjourn.stores.sqlite import SQLiteStore

    return SQLiteStore(place.removeprefix("sqlite:///"))


def make() -> Adjourn:
    """The application, as `adjourn serve` and `adjourn worker` take it."""
    ai = Adjourn(model="script", secret=secrets("APP_SECRET_FILE") or None, observers=observers())

    @ai.model("script")
    async def script(request: ModelRequest, emit: Emit) -> Any:
        reply = answer(request)
        emit(Chunk(content=[Part(text=reply if isinstance(reply, str) else "I look into it.")]))
        return reply

    @ai.tool(idempotent=True)
    async def find_order(order: int) -> dict[str, Any]:
        """Looks an order up."""
        return {"order": order, "paid": 40, "item": "lamp"}

    @ai.tool(approval=True)
    async def refund(order: int, euros: int, ctx: ToolRunContext) -> dict[str, Any]:
        """Pays money back. Waits until somebody has approved it."""
        # Give the key to whoever moves the money: for one approved call it is the same in every attempt.
        return {"refunded": euros, "order": order, "key": ctx.idempotency_key}

    ai.define_agent("desk", system="You look after orders.", tools=[find_order, refund], store=store())
    return ai


def observers() -> Sequence[Any]:
    """Logs; and spans, where OpenTelemetry is installed. Without an SDK that is set up, its spans go nowhere."""
    try:
        from adjourn.tracing import Tracing
    except ImportError:
        return [Logs()]
    return [Logs(), Tracing()]


def answer(request: ModelRequest) -> Any:
    """What a model would say."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"Done: {last.tool_responses[-1].output}"
    numbers = [int(n) for n in re.findall(r"\d+", last.text)]
    if "refund" in last.text.lower() and len(numbers) == 2:
        return ["I ask for it. ", call("refund", {"euros": numbers[0], "order": numbers[1]})]
    if numbers:
        return ["I look into it. ", call("find_order", {"order": numbers[0]})]
    return 'Say "refund 40 euros for order 17".'


def webhooks() -> list[Webhook]:
    """Who is told. See docs/webhooks.md."""
    url = os.environ.get("APP_WEBHOOK_URL")
    if not url:
        return []
    return [Webhook(url=url, secret=secrets("APP_WEBHOOK_SECRET_FILE"), allow=words("APP_WEBHOOK_ALLOW"), name="desk")]


def main() -> None:
    """Serves behind a proxy that signs people in, with webhooks: what `adjourn serve` has no options for."""
    import uvicorn

    from adjourn.logs import configure
    from adjourn.server import Auth, ServerSettings, TrustedProxy, create_app
    from adjourn.server.serving import uvicorn_options

    configure(json=True)
    addresses = tuple(words("APP_PROXY_ADDRESSES", "127.0.0.1"))
    role = os.environ.get("APP_PROXY_ROLE", "decide")
    if role not in ("view", "decide", "admin"):
        raise SystemExit(f"APP_PROXY_ROLE={role}: give view, decide or admin")
    settings = ServerSettings.from_environment(os.environ, trusted_proxies=addresses)
    # Everybody sees everything here (owners=None); left out, people would see what they began themselves.
    proxy = TrustedProxy(addresses, user_header="x-forwarded-user", default_role=role, owners=None)
    app = create_app(make(), Auth.from_environment(trusted_proxy=proxy), settings=settings, webhooks=webhooks())
    host, _, port = os.environ.get("APP_LISTEN", "127.0.0.1:8000").rpartition(":")
    uvicorn.run(app, host=host, port=int(port), log_config=None, **uvicorn_options(settings))


if __name__ == "__main__":
    main()

"""Webhooks: what the inbox is told of (a pause, a decision, an expiry) is posted to URLs, signed, in order, at least once.

The source is the feed that pauses and decisions are written to in their own transaction, so nothing is lost between the
two. How far a hook has come is kept in the store, beside a lease that lets one process deliver at a time; another takes
over when that one is gone. A receiver that does not answer holds up its own hook only, is asked again after growing
pauses that outlive restarts, and after `give_up_after` what is older is dropped, which is recorded.

The signature is that of Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature`, whose value is
`v1,` and the base64 of HMAC-SHA256 over `{id}.{timestamp}.{body}`. `verify` checks it; so do the libraries of that standard.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from adjourn.app import Adjourn
from adjourn.errors import DefinitionError
from adjourn.lease import transact
from adjourn.server.outgoing import Bounds, Resolve, resolve
from adjourn.server.webhook_delivery import Deliverer, HookState, state_of
from adjourn.server.webhook_spec import BadSignature, Webhook, sign, verify

__all__ = ["BadSignature", "Bounds", "HookState", "Webhook", "delivering", "running", "sign", "states", "verify"]


@asynccontextmanager
async def delivering(
    ai: Adjourn, hooks: Sequence[Webhook], *, public_url: str | None = None, resolve: Resolve = resolve
) -> AsyncGenerator[None]:
    """Delivers to these hooks for as long as this lasts: in a server, a worker, or a process of its own.

    Any number of processes may do so at once: each hook is delivered by one of them.
    """
    names = [h.id for h in hooks]
    if len(set(names)) < len(names):
        raise DefinitionError("two webhooks have the same URL or name; give each a name= of its own")
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(Deliverer(ai, store, hook, public_url, resolve).run())
        for store in ai.stores()
        for hook in hooks
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def states(ai: Adjourn, hooks: Sequence[Webhook]) -> Mapping[str, Sequence[HookState]]:
    """How far each hook has come, by its id: one state for each store it was run on."""
    found: dict[str, list[HookState]] = {}
    for hook in hooks:
        kept = [await transact(s, partial(state_of, hook_id=hook.id), read=True) for s in ai.stores()]
        found[hook.id] = [s for s in kept if s is not None]
    return found


@asynccontextmanager
async def running(app: Any) -> AsyncGenerator[None]:
    """For the server: delivers to the hooks it was made with."""
    state = app.state
    async with delivering(state.desk.ai, state.get("webhooks", ()), public_url=state.settings.public_url):
        yield

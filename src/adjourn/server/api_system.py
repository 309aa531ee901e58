"""Whether the server lives, whether it is ready, and its metrics."""

import asyncio
from collections.abc import Sequence

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.types import ControllerRouterHandler

from adjourn.lease import transact
from adjourn.metrics import Metrics
from adjourn.server.api_shapes import Health
from adjourn.server.desk import Desk
from adjourn.server.given import AtDesk
from adjourn.server.principal import Forbidden, Principal
from adjourn.server.settings import ServerSettings

READY_WITHIN = 5.0


def routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    return [health, ready, *([_metrics(settings)] if settings.metrics else [])]


@get("/health", summary="It lives", operation_id="Health", opt={"public": True}, tags=["System"], sync_to_thread=False)
def health() -> Health:
    """For whoever restarts a process that hangs. It asks nothing of the stores."""
    return Health("ok")


@get("/ready", summary="It can work", operation_id="Ready", opt={"public": True, "unready": True}, tags=["System"])
async def ready(desk: AtDesk) -> Response[Health]:
    """For whoever sends it requests: 503 while a store does not answer."""
    try:
        async with asyncio.timeout(READY_WITHIN):
            for store in desk.ai.stores():
                await transact(store, lambda tx: tx.session("-"), read=True)
    except Exception:  # noqa: BLE001 - whatever it is, it cannot work now
        return Response(Health("unavailable"), status_code=503)
    return Response(Health("ok"))


def _metrics(settings: ServerSettings) -> ControllerRouterHandler:
    public = settings.metrics_for_all

    @get(
        "/metrics",
        summary="Prometheus metrics",
        operation_id="Metrics",
        opt={"public": public, "problems": (403,)},
        media_type="text/plain; version=0.0.4",
        tags=["System"],
    )
    async def metrics(desk: AtDesk, principal: NamedDependency[Principal | None]) -> Response[bytes]:
        """Counts over everything, so it takes a token that sees everything (or `metrics_for_all`)."""
        if not public and (principal is None or not principal.sees_everything):
            raise Forbidden('the metrics are about everybody\'s work: they take a token whose `owners` are ["*"]')
        return Response(await rendered(desk), media_type="text/plain; version=0.0.4; charset=utf-8")

    return metrics


async def rendered(desk: Desk) -> bytes:
    """What the application's `Metrics` observers counted, and what waits."""
    return b"".join([await o.scrape() for o in desk.ai.observers if isinstance(o, Metrics)])

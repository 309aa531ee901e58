"""Turns on Temporal: `Adjourn(engine=Temporal("host:7233"))` where turns begin, `run_worker(ai)` where they run."""

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from adjourn.errors import MissingExtra

try:
    from temporalio.client import Client
except ImportError:
    raise MissingExtra("The Temporal engine", "temporal") from None

from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.converter import PayloadCodec
from temporalio.service import TLSConfig

from adjourn.engine import Deed, Work
from adjourn.engines.live import LiveLine, Switchboard
from adjourn.engines.temporal_payloads import data_converter
from adjourn.engines.temporal_recount import recount
from adjourn.engines.temporal_worker import WorkerOptions, run_worker
from adjourn.engines.temporal_workflow import TURN, WOKEN, Start, Timing
from adjourn.stream import Watcher

__all__ = ["TLS", "Temporal", "Timing", "WorkerOptions", "data_converter", "run_worker"]


@dataclass(frozen=True)
class TLS:
    """PEM files, or their contents: the authority that signed the server's certificate, and the client's own."""

    ca: str | Path | bytes | None = None
    cert: str | Path | bytes | None = None
    key: str | Path | bytes | None = None
    domain: str | None = None

    def config(self) -> TLSConfig:
        """As the client takes it."""
        return TLSConfig(_pem(self.ca), self.domain, _pem(self.cert), _pem(self.key))


def _pem(given: str | Path | bytes | None) -> bytes | None:
    return given if given is None or isinstance(given, bytes) else Path(given).read_bytes()


class Temporal:
    """The engine. `queue` is the task queue of the workers; `codec` encrypts all that travels through Temporal.

    `live` is the address at which workers reach this process with the chunks of a turn that it watches, None for no live
    chunks: they go over a connection of their own, unencrypted. `timing` bounds the steps of turns that begin here.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7233",
        *,
        namespace: str = "default",
        queue: str = "adjourn",
        tls: TLS | bool | None = None,
        api_key: str | None = None,
        codec: PayloadCodec | None = None,
        live: str | None = "127.0.0.1",
        timing: Timing | None = None,
    ) -> None:
        self.address = address
        self.namespace = namespace
        self.queue = queue
        self.timing = timing or Timing()
        self.holder = f"temporal:{namespace}:{queue}"
        self._tls = tls
        self._api_key = api_key
        self._codec = codec
        self._live = live
        self._switchboard = Switchboard(live)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Client]] = (
            weakref.WeakKeyDictionary()
        )

    def at(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        tls: TLS | bool | None = None,
        api_key: str | None = None,
        live: str | None = None,
    ) -> "Temporal":
        """The same engine elsewhere: what is not given, its codec and its timing are as they are here."""
        return Temporal(
            address or self.address,
            namespace=namespace or self.namespace,
            queue=queue or self.queue,
            tls=self._tls if tls is None else tls,
            api_key=api_key or self._api_key,
            codec=self._codec,
            live=live or self._live,
            timing=self.timing,
        )

    async def client(self) -> Client:
        """The connection of this event loop."""
        loop = asyncio.get_running_loop()
        connecting = self._clients.get(loop)
        if connecting is None or (connecting.done() and (connecting.cancelled() or connecting.exception())):
            connecting = self._clients[loop] = loop.create_task(self._connect())
            # Whoever wanted it may have lost patience: what it raises is for the next one, and no warning.
            connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(connecting)

    async def _connect(self) -> Client:
        tls: Any = self._tls.config() if isinstance(self._tls, TLS) else self._tls
        options: Mapping[str, Any] = {} if tls is None else {"tls": tls}
        return await Client.connect(
            self.address,
            namespace=self.namespace,
            api_key=self._api_key,
            data_converter=data_converter(self._codec),
            **options,
        )

    async def wake(self, work: Work) -> None:
        client = await self.client()
        signal: Mapping[str, Any] = {} if work.first == 0 else {"start_signal": WOKEN, "start_signal_args": [work]}
        await client.start_workflow(
            TURN,
            Start(work, self.timing),
            id=work.id,
            task_queue=self.queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=timedelta(seconds=self.timing.task),
            rpc_timeout=timedelta(seconds=10),  # it is in the store: nobody has to wait for a server that is away
            static_summary=work.agent,
            memo={"agent": work.agent, "session": work.session_id},
            **signal,
        )

    async def listen(self, watcher: Watcher | None) -> LiveLine:
        return await self._switchboard.line(watcher)

    async def recount(self, works: Sequence[str]) -> Sequence[Deed]:
        return await recount(await self.client(), works)

    async def aclose(self) -> None:
        """Closes what this event loop listens on."""
        await self._switchboard.aclose()
        self._clients.pop(asyncio.get_running_loop(), None)

"""The options that choose an engine, and those that set up logging: what `serve` and `worker` share."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from adjourn.app import Adjourn
from adjourn.cli.failures import Misuse
from adjourn.errors import MissingExtra
from adjourn.logs import Logs, configure

_PANEL = "Engine"


@dataclass
class EngineOptions:
    """Who makes turns survive machines. Without any of these, what the application says itself."""

    engine: Annotated[
        str | None, typer.Option(help="temporal: turns run on Temporal.", rich_help_panel=_PANEL, show_default=False)
    ] = None
    address: Annotated[
        str | None,
        typer.Option(help="The engine's server.", rich_help_panel=_PANEL, envvar="ADJOURN_TEMPORAL_ADDRESS"),
    ] = None
    namespace: Annotated[
        str | None, typer.Option(help="Its namespace.", rich_help_panel=_PANEL, envvar="ADJOURN_TEMPORAL_NAMESPACE")
    ] = None
    queue: Annotated[
        str | None, typer.Option(help="Its task queue.", rich_help_panel=_PANEL, envvar="ADJOURN_TEMPORAL_QUEUE")
    ] = None
    live: Annotated[
        str | None,
        typer.Option(
            help="This machine's address, at which workers reach it with live chunks.",
            rich_help_panel=_PANEL,
            envvar="ADJOURN_TEMPORAL_LIVE",
        ),
    ] = None
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Connect with TLS. The API key is ADJOURN_TEMPORAL_API_KEY.", rich_help_panel=_PANEL
        ),
    ] = False
    tls_ca: Annotated[
        Path | None, typer.Option(help="The server's authority (PEM).", rich_help_panel=_PANEL, show_default=False)
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(help="The client's certificate (PEM).", rich_help_panel=_PANEL, show_default=False)
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="The client's key (PEM).", rich_help_panel=_PANEL, show_default=False)
    ] = None

    def apply(self, ai: Adjourn) -> bool:
        """Gives the application its engine; says whether it has one, from here or of its own."""
        if self.engine is None:
            return ai.engine is not None
        if self.engine != "temporal":
            raise Misuse(f"--engine {self.engine}: the one there is is called temporal")
        try:
            from adjourn.engines.temporal import TLS, Temporal
        except ImportError as e:
            raise MissingExtra(f"--engine temporal ({e})", "temporal") from e
        files = TLS(self.tls_ca, self.tls_cert, self.tls_key)
        named = any(v is not None for v in (self.tls_ca, self.tls_cert, self.tls_key))
        for path in (self.tls_ca, self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise Misuse(f"there is no file {path}")
        # An engine of the application's own may encrypt what travels: that must not end because somebody named an address.
        own = ai.engine if isinstance(ai.engine, Temporal) else Temporal()
        ai.engine = own.at(
            self.address,
            namespace=self.namespace,
            queue=self.queue,
            tls=files if named else self.tls or None,
            api_key=os.environ.get("ADJOURN_TEMPORAL_API_KEY") or None,
            live=self.live,
        )
        return True


@dataclass
class Logging:
    """What is written about the running, on standard error: ids and numbers, never content."""

    log_level: Annotated[str, typer.Option(help="critical, error, warning, info or debug.")] = "warning"
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False

    def apply(self, ai: Adjourn | None = None) -> None:
        """Sets it up for the whole process; what happens in the turns of `ai` is logged as well, with its ids."""
        level = self.log_level.upper()
        if level not in logging.getLevelNamesMapping():
            raise Misuse(f"--log-level {self.log_level}: give critical, error, warning, info or debug")
        configure(json=self.log_json, level=level)
        if ai is not None and not any(isinstance(o, Logs) for o in ai.observers):
            ai.observers = (*ai.observers, Logs())

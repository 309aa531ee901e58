"""`adjourn serve`: the HTTP API and the web inbox of an application, on uvicorn."""

import os
import secrets
import signal
import socket
import stat
import sys
from dataclasses import dataclass
from logging import INFO, getLogger
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from adjourn.cli.chat import AppArgument
from adjourn.cli.commands import Group, Shell, misused
from adjourn.cli.engine import EngineOptions, Logging
from adjourn.cli.failures import Misuse
from adjourn.cli.place import load_app
from adjourn.cli.telemetry import set_up
from adjourn.cli.words import many
from adjourn.errors import MissingExtra

_APP, _LOG = "ADJOURN_SERVED_APP", "ADJOURN_SERVED_LOG"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass
class Listening:
    """Where to listen, and how."""

    host: Annotated[str, typer.Option(help="The address to bind.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000
    uds: Annotated[Path | None, typer.Option(help="A Unix socket to bind instead.", show_default=False)] = None
    workers: Annotated[int, typer.Option(help="How many processes.", min=1, max=256)] = 1
    access_log: Annotated[bool, typer.Option("--access-log", help="A line for each request.")] = False


@dataclass
class Access:
    """Who may use it, and where people reach it. What is not given here comes from the environment."""

    token_file: Annotated[
        Path | None,
        typer.Option(help="Access tokens, as hashes (TOML or JSON); else ADJOURN_TOKEN_FILE.", show_default=False),
    ] = None
    public_url: Annotated[
        str | None,
        typer.Option(help="Where people reach it, for links; else ADJOURN_PUBLIC_URL.", show_default=False),
    ] = None
    root_path: Annotated[
        str | None,
        typer.Option(help="The prefix it is mounted under; else ADJOURN_ROOT_PATH.", show_default=False),
    ] = None
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            help="Addresses whose X-Forwarded-* are believed, with commas; else ADJOURN_TRUSTED_PROXIES.",
            show_default=False,
        ),
    ] = None

    def apply(self) -> None:
        """Into the environment, which the server reads, here and in its worker processes."""
        for name, value in vars(self).items():
            if value is not None:
                os.environ[f"ADJOURN_{name.upper()}"] = str(value)


def add_to(group: Group) -> None:
    group.command("serve", about="app", panel="Running", drains=True)(serve)


async def serve(
    shell: Shell, app: AppArgument, listening: Listening, access: Access, logging: Logging, engine: EngineOptions
) -> int:
    """Serve the HTTP API and the web inbox. Without configured access a token is made, and a link that signs in is shown."""
    try:
        import uvicorn

        from adjourn.server import Auth, ServerSettings, create_app
        from adjourn.server.app import announce
        from adjourn.server.serving import uvicorn_options
    except MissingExtra:
        raise
    except ImportError as e:
        raise MissingExtra(f"adjourn serve ({e})", "server") from e
    access.apply()
    logging.apply()
    if listening.access_log:
        getLogger("adjourn.access").setLevel(INFO)
    if listening.workers > 1:
        if engine.engine is not None:
            raise misused("--engine with --workers: give the application its engine itself, Adjourn(engine=…)")
        os.environ[_LOG] = f"{logging.log_level},{'json' if logging.log_json else 'text'}"
        return _serve_many(shell, app, listening)
    ai = shell.place.load(app)
    logging.apply(ai)
    set_up(ai)
    engine.apply(ai)
    auth, settings = Auth.from_environment(), ServerSettings.from_environment(os.environ)
    config: Any = uvicorn.Config(create_app(ai, auth, settings=settings), log_config=None, **uvicorn_options(settings))
    bound = bind(listening)
    url = settings.public_url or _url(listening, bound)
    announce(auth, settings, url)
    _ready(shell, url, listening)
    server = uvicorn.Server(config)
    # At its end uvicorn raises the signal that ended it once more, for the handlers there were before. That it came is
    # how a server is meant to end, so they do nothing.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _nothing)
    try:
        await server.serve(sockets=[bound])
    finally:
        bound.close()
    return 0 if server.started else 1


def _nothing(number: int, frame: FrameType | None) -> None:
    """A signal that has done its work already."""


def _ready(shell: Shell, url: str, listening: Listening) -> None:
    shell.screen.give({"event": "serving", "url": url, "workers": listening.workers})
    count = f" with {many(listening.workers, 'process', 'processes')}" if listening.workers > 1 else ""
    shell.screen.say(f"Serving at {url}{count}. Ctrl-C or SIGTERM ends it.")
    if listening.uds is None and listening.host not in LOOPBACK:
        shell.screen.note("It can be reached from other machines, without encryption: put a proxy with TLS before it.")
    sys.stdout.flush()


def bind(listening: Listening) -> socket.socket:
    """The socket to serve at. Raises Misuse."""
    try:
        if listening.uds is not None:
            _make_room(listening.uds)
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            bound.bind(str(listening.uds))
            return bound
        family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        if os.name != "nt":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listening.host, listening.port))
    except (OSError, AttributeError) as e:
        where = str(listening.uds) if listening.uds is not None else f"{listening.host} port {listening.port}"
        raise Misuse(f"cannot listen on {where}: {e}", kind="address") from None
    return bound


def _make_room(path: Path) -> None:
    """Removes the socket that an earlier server left. Raises Misuse where something else is there, which stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Misuse(f"--uds {path}: there is something that is no socket; it was left as it is", kind="address")
    path.unlink(missing_ok=True)


def _url(listening: Listening, bound: socket.socket | None) -> str:
    if listening.uds is not None:
        return f"unix:{listening.uds}"
    port = bound.getsockname()[1] if bound is not None else listening.port
    host = listening.host if listening.host not in ("0.0.0.0", "::") else "127.0.0.1"  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# -- several processes -----------------------------------------------------------------------------------------------


def _serve_many(shell: Shell, app: str, listening: Listening) -> int:
    import uvicorn

    from adjourn.server.serving import uvicorn_options

    if listening.port == 0:
        raise misused("--workers needs a --port of its own")
    if listening.uds is not None:
        try:
            _make_room(listening.uds)
        except OSError as e:
            raise Misuse(f"cannot listen on {listening.uds}: {e}", kind="address") from None
    ai = load_app(app)  # whatever is wrong with it is told once, here
    os.environ[_APP] = app
    if not ai.secrets:  # or each would sign cookies with its own
        os.environ.setdefault("ADJOURN_SECRET", secrets.token_urlsafe(32))
    if not any(os.environ.get(n) for n in ("ADJOURN_TOKEN", "ADJOURN_TOKENS", "ADJOURN_TOKEN_FILE")):
        token = os.environ["ADJOURN_TOKEN"] = f"adj_{secrets.token_urlsafe(24)}"
        sys.stderr.write(f"\nNo access was configured, so a token was made for this run:\n\n    {token}\n\n")
        sys.stderr.flush()
    _ready(shell, os.environ.get("ADJOURN_PUBLIC_URL") or _url(listening, None), listening)
    where: dict[str, Any] = (
        {"uds": str(listening.uds)} if listening.uds else {"host": listening.host, "port": listening.port}
    )
    # By its name, since a class that is made at run time does not reach another process.
    options: dict[str, Any] = {**uvicorn_options(), "http": "adjourn.server.serving:TimedProtocol", "log_config": None}
    uvicorn.run("adjourn.cli.serving:application", factory=True, workers=listening.workers, **where, **options)
    return 0


def application() -> Any:
    """The server, in a process of its own, as its parent's environment says."""
    from adjourn.server import create_app

    level, _, form = os.environ.get(_LOG, "warning").partition(",")
    ai = load_app(os.environ[_APP])
    Logging(level, form == "json").apply(ai)
    set_up(ai)
    return create_app(ai)

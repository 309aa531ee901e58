"""How the engine connects: over TLS with a certificate of its own, with an API key, and elsewhere without losing its codec."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adjourn import MemoryStore
from adjourn.cli.engine import EngineOptions
from adjourn.engines.temporal import TLS, Temporal, Timing
from adjourn.testing import call
from cli.shop_app import build
from engines.engine_kit import rest, world
from engines.temporal_server import Server
from engines.test_engine_temporal import Scrambled


def certificates(folder: Path) -> None:
    """An authority, and what it signed for a server on loopback and for a client."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT TESTED OVER TLS: there is no openssl (Debian: apt-get install openssl)")

    def run(*command: str) -> None:
        subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)

    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    run("req", "-x509", *made, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:temporal.test\n")
        run("req", "-new", *made[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        run("x509", "-req", "-in", f"{name}.csr", *signing, "-extfile", f"{name}.ext", "-out", f"{name}.pem")


@asynccontextmanager
async def behind_tls(address: str, folder: Path) -> AsyncGenerator[str]:
    """The server at this address, behind TLS that asks for a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    host, _, port = address.partition(":")
    serving: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (OSError, ssl.SSLError):
            pass

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, out = await asyncio.open_connection(host, int(port))
        ways = [asyncio.create_task(pipe(reader, out)), asyncio.create_task(pipe(theirs, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (out, writer):
                end.transport.abort()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(both(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@pytest.mark.slow
async def test_turns_run_over_tls_with_a_certificate_of_the_clients_own(temporal: Server, tmp_path: Path) -> None:
    certificates(tmp_path)
    tls = TLS(tmp_path / "ca.pem", tmp_path / "client.pem", (tmp_path / "client.key").read_bytes(), "temporal.test")
    async with behind_tls(temporal.address, tmp_path) as address:
        there = Server.__new__(Server)
        there.address = address
        async with world(there, tmp_path, [call("gate", {"n": 1})], "done", tls=tls) as w:
            output = await rest(w.agent.connect().send("go"))
            assert (await rest(output.interrupts[0].restart())).text == "done"
        stranger = Temporal(address, tls=TLS(tmp_path / "ca.pem", domain="temporal.test"))
        with pytest.raises(RuntimeError):
            await stranger.client()


class Connected:
    """What a client was asked to connect with."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    async def connect(self, address: str, **given: Any) -> object:
        self.given = {"address": address, **given}
        return object()


async def test_the_api_key_and_tls_of_the_command_line_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = Connected()
    monkeypatch.setattr("adjourn.engines.temporal.Client", connected)
    monkeypatch.setenv("ADJOURN_TEMPORAL_API_KEY", "key")
    ai = build(MemoryStore())
    EngineOptions("temporal", "cloud.example:7233", "shop", "turns", tls=True).apply(ai)
    assert isinstance(ai.engine, Temporal)
    await ai.engine.client()
    given = connected.given
    assert (given["address"], given["namespace"], given["api_key"]) == ("cloud.example:7233", "shop", "key")
    assert given["tls"] is True
    assert ai.engine.holder == "temporal:shop:turns"


async def test_an_engine_of_the_applications_own_keeps_its_codec_when_the_command_line_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected = Connected()
    monkeypatch.setattr("adjourn.engines.temporal.Client", connected)
    codec, timing = Scrambled(), Timing(task=3.0)
    ai = build(MemoryStore())
    ai.engine = Temporal("here:7233", queue="mine", codec=codec, api_key="own", live=None, timing=timing)
    EngineOptions("temporal", "there:7233").apply(ai)
    assert isinstance(ai.engine, Temporal)
    await ai.engine.client()
    given = connected.given
    assert (given["address"], given["api_key"]) == ("there:7233", "own")
    assert given["data_converter"].payload_codec is codec
    assert (ai.engine.queue, ai.engine.timing) == ("mine", timing)
    assert (await ai.engine.listen(None)).address == ""

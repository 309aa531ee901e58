"""Clients that mean harm, at a real uvicorn: slow ones, huge ones, and those that send no HTTP at all."""

import logging
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from adjourn.server.hardening import Gate
from server.server_kit import UNLIMITED, Office, app_of, bearer, served


@contextmanager
def raw(url: str) -> Generator[socket.socket]:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield connection


def all_of(connection: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    got = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return got
        if not piece:
            return got
        got += piece


def drip(connection: socket.socket, text: bytes) -> None:
    """Sends one letter at a time, which does not buy more time. Raises OSError when the server hangs up."""
    connection.settimeout(0.05)
    for letter in text:
        connection.send(bytes([letter]))
        try:
            if connection.recv(10) == b"":
                raise ConnectionError("the server closed it")
        except TimeoutError:
            continue


@pytest.fixture(scope="module")
def quick() -> Iterator[str]:
    """A server that has little patience."""
    settings: dict[str, Any] = {"header_seconds": 0.3, "body_seconds": 0.3, "body_bytes": 10_000}
    app = app_of(Office(), **settings)
    with served(app, app.state.settings) as url:
        yield url


def is_well(url: str) -> bool:
    return httpx.get(url + "/api/me", headers=bearer("ann"), timeout=20).status_code == 200


def test_who_sends_headers_slowly_is_hung_up_on(quick: str) -> None:
    for sent in (b"", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: b"):
        with raw(quick) as connection:
            connection.sendall(sent)
            assert all_of(connection) == b""
    with raw(quick) as connection, pytest.raises(OSError, match=r"reset|pipe|closed"):
        drip(connection, b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 2000)
    assert is_well(quick)


def test_who_begins_a_second_request_slowly_is_hung_up_on_too(quick: str) -> None:
    with raw(quick) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /health HTTP/1.1\r\nHo")
        all_of(connection)  # ends
    assert is_well(quick)


def test_who_sends_a_body_slowly_gets_an_answer_and_no_more_time(quick: str) -> None:
    with raw(quick) as connection:
        connection.sendall(b"POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body-too-slow" in answer
    assert is_well(quick)


@pytest.mark.parametrize("path", ["/api/session", "/api/agents/clerk/send", "/login", "/nowhere", "/genkit/clerk"])
def test_a_huge_body_is_refused_before_it_is_sent(quick: str, path: str) -> None:
    with raw(quick) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n".encode())
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body-too-large" in answer
    assert b"content-security-policy" in answer


def test_a_body_without_an_end_is_cut_off(quick: str) -> None:
    with raw(quick) as connection:
        connection.sendall(b"POST /api/session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        sent = 0
        try:
            while sent < 200:
                connection.sendall(chunk)
                sent += 1
        except (ConnectionError, TimeoutError):
            pass
        answer = all_of(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert is_well(quick)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00" * 100,
        b"HELO there\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
    ids=["zeros", "another protocol", "huge header", "smuggled", "two hosts", "no host", "websocket"],
)
def test_what_is_no_good_request_gets_no_good_answer(quick: str, nonsense: bytes) -> None:
    with raw(quick) as connection:
        connection.sendall(nonsense)
        connection.settimeout(20)
        answer = connection.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 2"), answer
    assert b"Traceback" not in answer
    assert is_well(quick)


def test_who_does_not_read_its_reply_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    let_go = threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        finally:
            let_go.set()

    gate = Gate(endless, replace(UNLIMITED, reply_seconds=0.3))
    with served(gate, lifespan="off") as url, raw(url) as connection, caplog.at_level(logging.INFO, "adjourn.server"):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert let_go.wait(20)
    assert "took nothing of its reply" in caplog.text
    assert "incident" not in caplog.text


def test_a_hundred_slow_clients_keep_nobody_else_out(quick: str) -> None:
    connections: list[socket.socket] = []
    host, _, port = quick.removeprefix("http://").partition(":")
    try:
        for _ in range(100):
            connection = socket.create_connection((host, int(port)), timeout=20)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            connections.append(connection)
        began = time.monotonic()
        assert is_well(quick)
        assert time.monotonic() - began < 20
        for connection in connections:
            assert all_of(connection) == b""
    finally:
        for connection in connections:
            connection.close()


def test_a_client_that_goes_away_at_the_pause_changes_nothing() -> None:
    office = Office()
    with served(app_of(office), UNLIMITED) as url:
        with httpx.stream(
            "POST",
            url + "/api/agents/clerk/send",
            json={"message": "pay 5"},
            headers={**bearer("ann"), "accept": "text/event-stream"},
            timeout=20,
        ) as reply:
            next(reply.iter_lines())
        with httpx.Client(base_url=url, headers=bearer("ann"), timeout=20) as http:
            items: list[Any] = []
            for _ in range(500):
                if items := http.get("/api/interrupts").json()["items"]:
                    break
                time.sleep(0.01)
            assert [i["input"] for i in items] == [{"amount": 5}]
            assert http.post(f"/api/interrupts/{items[0]['id']}/restart").status_code == 202

"""Where webhooks are posted to, and where not."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adjourn.server.outgoing import AddressRefused, Bounds, Outgoing, Undelivered, is_public
from server.webhook_kit import receiving

LOOPBACK = ("127.0.0.0/8", "::1/128")


def resolving(*answers: Sequence[str]) -> Callable[[str, int], Any]:
    """A resolver that gives these, one after the other, the last one for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_of_the_open_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "239.1.1.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1",
        "not an address", "", "127.1", "0x7f000001",
    ],
)  # fmt: skip
def test_everything_else_is_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1"])
async def test_a_private_address_is_not_connected_to(address: str) -> None:
    out = Outgoing("https://internal.example/hook", resolve=resolving([address]))
    with pytest.raises(AddressRefused, match="no address of the open Internet"):
        await out.post(b"{}", {})


async def test_an_address_in_the_url_itself_is_looked_at_too() -> None:
    async with receiving() as receiver:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(AddressRefused):
                await Outgoing(f"http://{host}:{receiver.port}/").post(b"{}", {})
        assert receiver.connections == 0


async def test_plain_http_is_refused_on_the_open_internet() -> None:
    out = Outgoing("http://example.com/hook", resolve=resolving(["93.184.216.34"]))
    with pytest.raises(AddressRefused, match="plain http"):
        await out.post(b"{}", {})


async def test_what_is_allowed_is_posted_to() -> None:
    async with receiving() as receiver:
        out = Outgoing(f"http://hooks.example:{receiver.port}/x?y=1", allow=LOOPBACK, resolve=resolving(["127.0.0.1"]))
        await out.post(b'{"a":1}', {"x-mine": "1"})
        await out.aclose()
        (got,) = receiver.came
        assert got.line == "POST /x?y=1 HTTP/1.1"
        assert got.headers["host"] == f"hooks.example:{receiver.port}"
        assert (got.headers["x-mine"], got.body) == ("1", b'{"a":1}')


async def test_only_the_addresses_that_are_allowed_are_tried() -> None:
    async with receiving() as receiver:
        out = Outgoing(
            f"http://hooks.example:{receiver.port}/",
            allow=("127.0.0.1/32",),
            resolve=resolving(["10.0.0.1", "127.0.0.1"]),
        )
        await out.post(b"{}", {})
        await out.aclose()
        assert len(receiver.came) == 1


async def test_a_name_that_resolves_to_something_else_a_moment_later_changes_nothing() -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        # What is looked at is allowed. Whoever resolved the name a second time would get the other one.
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with receiving() as receiver:
        out = Outgoing(f"http://hooks.example:{receiver.port}/", allow=("127.0.0.1/32",), resolve=rebinding)
        await out.post(b"{}", {})
        assert asked == ["hooks.example"]
        assert len(receiver.came) == 1
        with pytest.raises(AddressRefused):  # and each attempt looks anew
            await out.post(b"{}", {})
        await out.aclose()
        assert len(receiver.came) == 1


async def test_the_next_address_is_tried_where_one_takes_no_connection() -> None:
    async with receiving() as receiver:
        out = Outgoing(
            f"http://hooks.example:{receiver.port}/", allow=LOOPBACK, resolve=resolving(["::1", "127.0.0.1"])
        )
        await out.post(b"{}", {})
        await out.aclose()
        assert len(receiver.came) == 1


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as receiver:
        reply = f"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:{receiver.port}/other\r\ncontent-length: 0\r\n\r\n"
        receiver.then = reply.encode()
        out = Outgoing(receiver.url, allow=LOOPBACK)
        with pytest.raises(Undelivered, match="said 307"):
            await out.post(b"{}", {})
        await out.aclose()
        assert [r.line for r in receiver.came] == ["POST /hook HTTP/1.1"]


@pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503])
async def test_anything_but_2xx_is_a_failure(status: int) -> None:
    async with receiving() as receiver:
        receiver.then = status
        out = Outgoing(receiver.url, allow=LOOPBACK)
        with pytest.raises(Undelivered, match=f"said {status}"):
            await out.post(b"{}", {})
        await out.aclose()


async def test_the_receiver_may_say_when_to_come_back() -> None:
    async with receiving() as receiver:
        receiver.then = b"HTTP/1.1 503 X\r\nretry-after: 120\r\ncontent-length: 0\r\n\r\n"
        out = Outgoing(receiver.url, allow=LOOPBACK)
        with pytest.raises(Undelivered) as e:
            await out.post(b"{}", {})
        await out.aclose()
        assert e.value.retry_after == 120.0


async def test_a_reply_without_end_is_not_read_to_its_end() -> None:
    async with receiving() as receiver:
        receiver.then = b"HTTP/1.1 200 X\r\ncontent-length: 100000000\r\n\r\n" + b"x" * 100_000
        out = Outgoing(receiver.url, allow=LOOPBACK, bounds=Bounds(10.0, reply_bytes=1000))
        await out.post(b"{}", {})
        await out.aclose()


@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nx"], ids=["says nothing", "stops in the middle"]
)
async def test_a_receiver_that_hangs_is_given_up_in_time(start: bytes) -> None:
    async with receiving() as receiver:
        receiver.then, receiver.stalls = start, True
        out = Outgoing(receiver.url, allow=LOOPBACK, bounds=Bounds(0.2))
        with pytest.raises(Undelivered, match=r"0.2 seconds|broke off"):
            await out.post(b"{}", {})
        await out.aclose()


async def test_what_is_no_http_is_a_failure() -> None:
    async with receiving() as receiver:
        receiver.then = b"SSH-2.0-OpenSSH\r\n\r\n"
        out = Outgoing(receiver.url, allow=LOOPBACK)
        with pytest.raises(Undelivered, match="broke off"):
            await out.post(b"{}", {})
        await out.aclose()


async def test_a_closed_port_is_a_failure() -> None:
    async with receiving() as receiver:
        url = receiver.url
    with pytest.raises(Undelivered, match="takes no connection"):
        await Outgoing(url, allow=LOOPBACK).post(b"{}", {})


async def test_a_name_that_does_not_resolve_is_a_failure() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(Undelivered, match="does not resolve"):
        await Outgoing("https://nowhere.example/", resolve=unknown).post(b"{}", {})


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        out = Outgoing(receiver.url, allow=LOOPBACK)
        await out.post(b"{}", {})
        await out.aclose()
        assert (len(receiver.came), proxy.connections) == (1, 0)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for hooks.example, signed by itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT TESTED OVER TLS: there is no openssl program to make a certificate with")
    made, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example"]
    options += ["-addext", "subjectAltName=DNS:hooks.example", "-keyout", str(key), "-out", str(made)]
    subprocess.run([openssl, *options], check=True, capture_output=True)
    return made, key


async def test_tls_is_checked_for_the_name_and_not_for_the_address(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with receiving() as receiver:
        server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        good, bad = [
            Outgoing(f"https://{name}:{port}/hook", allow=LOOPBACK, resolve=resolving(["127.0.0.1"]))
            for name in ("hooks.example", "other.example")
        ]
        await good.post(b"{}", {})
        with pytest.raises(Undelivered, match="CERTIFICATE_VERIFY_FAILED"):
            await bad.post(b"{}", {})
        await good.aclose()
        await bad.aclose()
        server.close()
        assert [r.headers["host"] for r in receiver.came] == [f"hooks.example:{port}"]

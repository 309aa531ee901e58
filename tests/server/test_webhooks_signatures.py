import time
from typing import Any

import pytest

from adjourn.errors import DefinitionError
from adjourn.server.webhooks import BadSignature, Webhook, sign, verify

SECRET = "a secret that nobody knows"
BODY = b'{"type":"interrupt.opened","data":{"n":0}}'
NOW = 1_700_000_000


def signed(**changes: Any) -> dict[str, str]:
    return {**sign(SECRET, "msg_1", NOW, BODY), **changes}


def test_a_signed_message_is_verified_and_read() -> None:
    assert verify(SECRET, signed(), BODY, now=NOW) == {"type": "interrupt.opened", "data": {"n": 0}}


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # Made with that standard's own Python library.
    headers = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_headers_are_found_in_any_case() -> None:
    headers = {name.title(): value for name, value in signed().items()}
    assert verify(SECRET, headers, BODY, now=NOW)["data"] == {"n": 0}


@pytest.mark.parametrize(
    "changes,body",
    [
        pytest.param({}, BODY + b" ", id="another body"),
        pytest.param({"webhook-id": "msg_2"}, BODY, id="another id"),
        pytest.param({"webhook-timestamp": str(NOW + 1)}, BODY, id="another time"),
        pytest.param({"webhook-signature": "v1,AAAA"}, BODY, id="another signature"),
        pytest.param({"webhook-signature": ""}, BODY, id="no signature"),
        pytest.param({"webhook-signature": "v1,\u00e9"}, BODY, id="a signature that is no ASCII"),
        pytest.param({"webhook-timestamp": ""}, BODY, id="no time"),
        pytest.param({"webhook-timestamp": "-5"}, BODY, id="a time before time"),
        pytest.param({"webhook-timestamp": "9" * 400}, BODY, id="a time that is no number of seconds"),
    ],
)
def test_what_was_altered_is_refused(changes: dict[str, str], body: bytes) -> None:
    with pytest.raises(BadSignature):
        verify(SECRET, signed(**changes), body, now=NOW)


def test_another_secret_is_refused() -> None:
    with pytest.raises(BadSignature):
        verify("a secret of somebody else", signed(), BODY, now=NOW)


def test_an_unsigned_message_is_refused() -> None:
    with pytest.raises(BadSignature):
        verify(SECRET, {}, BODY, now=NOW)


@pytest.mark.parametrize("off", [301, -301])
def test_a_message_of_another_time_is_refused(off: int) -> None:
    with pytest.raises(BadSignature, match="300 seconds"):
        verify(SECRET, signed(), BODY, now=NOW + off)


@pytest.mark.parametrize("off", [299, -299])
def test_clocks_may_differ_a_little(off: int) -> None:
    assert verify(SECRET, signed(), BODY, now=NOW + off)


def test_the_time_is_compared_with_the_real_one() -> None:
    headers = sign(SECRET, "msg_1", int(time.time()), BODY)
    assert verify(SECRET, headers, BODY)
    with pytest.raises(BadSignature):
        verify(SECRET, signed(), BODY)


def test_secrets_are_changed_without_a_gap() -> None:
    old, new = "the secret until today", "the secret from tomorrow"
    headers = sign([old, new], "msg_1", NOW, BODY)
    assert verify(old, headers, BODY, now=NOW) == verify(new, headers, BODY, now=NOW)
    assert verify([new, SECRET], signed(), BODY, now=NOW)


def test_a_signed_message_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadSignature, match="no JSON"):
        verify(SECRET, sign(SECRET, "msg_1", NOW, b"{"), b"{", now=NOW)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"url": "ftp://example.com/"}, id="another scheme"),
        pytest.param({"url": "/hook"}, id="no host"),
        pytest.param({"url": "https://"}, id="nothing at all"),
        pytest.param({"url": "https://example.com/#part"}, id="a fragment"),
        pytest.param({"secret": "short"}, id="a short secret"),
        pytest.param({"secret": ()}, id="no secret"),
        pytest.param({"secret": "whsec_%%%"}, id="a secret that is no base64"),
        pytest.param({"events": ("opened", "closed")}, id="an unknown event"),
        pytest.param({"allow": ("nowhere",)}, id="a network that is none"),
    ],
)
def test_a_webhook_that_cannot_work_is_refused_where_it_is_made(options: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"url": "https://example.com/hook", "secret": SECRET, **options}
    with pytest.raises(DefinitionError):
        Webhook(**whole)


def test_a_webhook_shows_no_secret() -> None:
    shown = repr(Webhook(url="https://example.com/hook/pass?token=abc", secret=SECRET))
    assert shown == "<Webhook example.com>"

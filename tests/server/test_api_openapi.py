"""The description of the API says what is true: schemathesis asks for everything in it, with and without a token."""

from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis.strategies as st
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from adjourn.server.api_openapi import described
from adjourn.server.problems import MEDIA_TYPE
from server.server_kit import Office, app_of, bearer, served, words

ALL: Any = list(HealthCheck)
ILL_FORMED = "Not of the documented shape"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with something in it."""
    with served(app_of(Office(), wait_seconds=1.0)) as url:
        for text in ("hello", "pay 5", "ask why"):
            body = {"message": text}
            httpx.post(url + "/api/agents/clerk/send", json=body, headers=bearer("root"), timeout=20).raise_for_status()
        yield url


PATHS: dict[str, Any] = described(app_of(Office()), "")["paths"]
OPERATIONS = [(path, method) for path, item in PATHS.items() for method in item if not path.endswith("/events")]
"""All but the live streams, which have no end."""


@pytest.fixture(scope="module")
def api(address: str) -> Any:
    return schemathesis.openapi.from_url(address + "/openapi.json")


def what_is_there(address: str) -> dict[str, list[str]]:
    """Ids that parts of a path may be: of interrupts that wait or were settled, and of sessions; new ones each time."""
    with httpx.Client(base_url=address, headers=bearer("root"), timeout=20) as client:
        for text in ("pay 5", "fail"):
            client.post("/api/agents/clerk/send", json={"message": text}).raise_for_status()
        interrupts = client.get("/api/interrupts", params={"status": "all", "limit": 1000}).json()["items"]
        sessions = client.get("/api/sessions", params={"limit": 1000}).json()["items"]
        link = client.post(f"/api/interrupts/{interrupts[-1]['id']}/links", json={"by": "ann"}).json()
    return {
        "interrupt_id": [i["id"] for i in interrupts[-8:]],
        "session_id": [s["id"] for s in sessions[-8:]],
        "name": ["clerk", "depot", "loose"],
        "token": [link["url"].rpartition("/")[2]],
    }


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("path, method", OPERATIONS, ids=lambda part: part)
def test_every_operation_answers_as_described_and_none_fails(
    api: Any, address: str, path: str, method: str, examples: int
) -> None:
    operation = api[path][method]
    known = what_is_there(address)

    @given(case=operation.as_strategy(), pick=st.integers(0, 50))
    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=ALL,
    )
    def ask(case: Any, pick: int) -> None:
        if case.meta.generation.mode is GenerationMode.POSITIVE:  # mostly at something that is there
            parts: dict[str, Any] = case.path_parameters or {}
            there = {name: ids[pick % len(ids)] for name, ids in known.items() if name in parts and pick}
            case.path_parameters = {**parts, **there}
        # What it means may still be wrong (a cursor that no page gave): that is told apart from what is ill-formed.
        left_out: Any = [vars(checks)["ignored_auth"], vars(checks)["positive_data_acceptance"]]
        reply = case.call_and_validate(headers=bearer("root"), excluded_checks=left_out, timeout=20)
        if case.meta.generation.mode is GenerationMode.POSITIVE and reply.status_code in (400, 422):
            assert reply.json()["title"] != ILL_FORMED, reply.text

    ask()


GOOD: dict[str, tuple[str, Any, int]] = {
    "DecideMany": ("pay 5", {"tool": "pay", "verb": "decline", "items": [{"id": "{interrupt_id}"}]}, 200),
    "Respond": ("pay 5", {"output": None}, 202),
    "Restart": ("pay 5", {"metadata": {"by": "ann"}, "replaceInput": {"amount": 6}}, 202),
    "Decline": ("pay 5", {"reason": "no"}, 202),
    "MakeLink": ("pay 5", {"by": "ann"}, 201),
    "DecideLink": ("pay 5", {"verb": "restart"}, 202),
    "Send": ("pay 5", {"message": "hello"}, 200),
    "Resume": ("pay 5", {"sessionId": "{session_id}", "respond": [{"interrupt": "{interrupt_id}", "output": 0}]}, 200),
    "ForkSession": ("pay 5", {}, 201),
    "AbortSession": ("pay 5", {"reason": "enough"}, 200),
    "RetrySession": ("fail", {}, 200),
    "DeleteSession": ("hello", None, 204),
    "SignIn": ("hello", {"token": words("root")}, 204),
    "SignOut": ("hello", None, 204),
}
"""What was said before, what is sent, and what comes of it; all other operations send nothing and get 200."""


@pytest.mark.parametrize("path, method", OPERATIONS, ids=lambda part: part)
def test_every_operation_succeeds_as_described(api: Any, address: str, path: str, method: str) -> None:
    operation = api[path][method]
    text, body, expected = GOOD.get(PATHS[path][method]["operationId"], ("pay 5", None, 200))
    client = httpx.Client(base_url=address, headers=bearer("root"), timeout=20)
    with client:
        run = client.post("/api/agents/clerk/send", json={"message": text}).json()
        ids = {"session_id": run["sessionId"], "name": "clerk"}
        ids["interrupt_id"] = run["interrupts"][0]["id"] if run["interrupts"] else "i_none"
        if "token" in path:
            link = client.post(f"/api/interrupts/{ids['interrupt_id']}/links", json={"by": "ann"}).json()
            ids["token"] = link["url"].rpartition("/")[2]
    given: dict[str, Any] = {"path_parameters": {n: v for n, v in ids.items() if "{" + n + "}" in path}}
    if body is not None:
        filled = msgspec.json.encode(body).decode()
        for name, value in ids.items():
            filled = filled.replace("{" + name + "}", value)
        given |= {"body": msgspec.json.decode(filled), "media_type": "application/json"}
    # Without a token these give 401, as the next test has it: here nothing is sent but what is described.
    left_out: Any = [vars(checks)["ignored_auth"]]
    reply = operation.Case(**given).call_and_validate(headers=bearer("root"), excluded_checks=left_out, timeout=20)
    assert reply.status_code == expected, reply.text


@pytest.mark.slow
@pytest.mark.parametrize("path, method", OPERATIONS, ids=lambda part: part)
def test_no_operation_is_done_for_a_stranger(api: Any, path: str, method: str) -> None:
    operation = api[path][method]
    is_open = PATHS[path][method]["security"] == []

    @given(case=operation.as_strategy(), head=st.sampled_from([{}, {"authorization": "Bearer x"}, bearer("nobody")]))
    @settings(max_examples=20, deadline=None, phases=[Phase.generate], suppress_health_check=ALL)
    def ask(case: Any, head: dict[str, str]) -> None:
        reply = case.call(headers=head, timeout=20)
        assert reply.status_code < 500
        assert is_open or reply.status_code in (400, 401, 404, 405), (reply.status_code, reply.text)

    ask()


def test_the_description_says_who_may_how_errors_look_and_what_to_send() -> None:
    for path, item in PATHS.items():
        for method, operation in item.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["description"], where
            is_public = operation["security"] == []
            assert is_public or operation["security"] == [{"token": []}, {"session": []}], where
            for status in ("400", "429", "500", *([] if is_public else ["401", "403"])):
                shape = operation["responses"][status]["content"][MEDIA_TYPE]["schema"]
                assert shape == {"$ref": "#/components/schemas/Problem"}, where
            for media in operation.get("requestBody", {}).get("content", {}).values():
                assert "example" in media, where


def test_the_examples_of_the_description_fit_its_shapes() -> None:
    schema = described(app_of(Office()), "")
    shapes = {f"#/components/schemas/{name}": shape for name, shape in schema["components"]["schemas"].items()}
    for item in PATHS.values():
        for operation in item.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                known = shapes[media["schema"]["$ref"]]
                assert set(media["example"]) <= set(known["properties"])
                assert set(known.get("required", ())) <= set(media["example"])
                assert known["additionalProperties"] is False

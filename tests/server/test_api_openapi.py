"""The description of the API says what is true: schemathesis asks for everything in it, with and without a token."""

from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis.strategies as st
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from adjourn.server.api_openapi import described
from adjourn.server.problems import MEDIA_TYPE
from server.server_kit import Office, app_of, bearer, served

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


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("path, method", OPERATIONS, ids=lambda part: part)
def test_every_operation_answers_as_described_and_none_fails(api: Any, path: str, method: str, examples: int) -> None:
    operation = api[path][method]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=ALL,
    )
    def ask(case: Any) -> None:
        # What it means may still be wrong (a cursor that no page gave): that is told apart from what is ill-formed.
        left_out: Any = [vars(checks)["ignored_auth"], vars(checks)["positive_data_acceptance"]]
        reply = case.call_and_validate(headers=bearer("root"), excluded_checks=left_out, timeout=20)
        if case.meta.generation.mode is GenerationMode.POSITIVE and reply.status_code in (400, 422):
            assert reply.json()["title"] != ILL_FORMED, reply.text

    ask()


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

"""Genkit's wire, byte by byte and rule by rule; its own clients are driven in tests/clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adjourn import run_sync
from adjourn.stores.sqlite import SQLiteStore
from server.wire_kit import Clerk, Serving, auth, serving


@pytest.fixture(scope="module")
def clerk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clerk]:
    store = SQLiteStore(tmp_path_factory.mktemp("wire") / "sessions.db")
    yield Clerk(store)
    store.close()


@pytest.fixture(scope="module")
def server(clerk: Clerk) -> Iterator[Serving]:
    with serving(clerk.ai) as running:
        yield running


def call(
    server: Serving, body: Any, who: str | None = "ann", *, path: str = "/genkit/clerk", stream: bool = False
) -> httpx.Response:
    headers = {"accept": "text/event-stream"} if stream else {}
    with server.client(who) as client:
        return client.post(path, json=body, headers=headers)


def result(server: Serving, body: Any, who: str = "ann", **options: Any) -> Any:
    reply = call(server, body, who, **options)
    assert reply.status_code == 200, reply.text
    return reply.json()["result"]


def frames(reply: httpx.Response) -> list[Any]:
    """Exactly as Genkit's JavaScript client takes them apart."""
    assert reply.text.endswith("\n\n")
    blocks = reply.text.removesuffix("\n\n").split("\n\n")
    assert all(b.startswith("data: ") and "\n" not in b for b in blocks)
    return [json.loads(b.removeprefix("data: ")) for b in blocks]


def said(text: str) -> dict[str, Any]:
    return {"data": {"message": {"role": "user", "content": [{"text": text}]}}, "init": {}}


def responding(paused: Any, output: Any, at: int = 0, **metadata: Any) -> dict[str, Any]:
    request = paused["message"]["content"][at]["toolRequest"]
    part = {"toolResponse": {"name": request["name"], "ref": request["ref"], "output": output}}
    return {
        "data": {"resume": {"respond": [part | ({"metadata": metadata} if metadata else {})]}},
        "init": {"snapshotId": paused["snapshotId"]},
    }


def interrupt_of(paused: Any) -> str:
    return paused["message"]["content"][0]["metadata"]["adjourn"]["pause"]["id"]


# -- frames ----------------------------------------------------------------------------------------------------------


def test_a_stream_is_chunks_an_end_and_the_result(server: Serving) -> None:
    reply = call(server, said("hello"), stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-store"
    *chunks, end, last = frames(reply)
    text = {"role": "model", "index": 0, "content": [{"text": "you "}]}
    assert chunks[0] == {"message": {"modelChunk": text}}
    assert end == {"message": {"turnEnd": {"snapshotId": last["result"]["snapshotId"], "finishReason": "stop"}}}
    assert last["result"]["message"] == {"role": "model", "content": [{"text": "you said hello"}]}
    assert last["result"]["finishReason"] == "stop"


def test_a_query_asks_for_a_stream_too(server: Serving) -> None:
    assert frames(call(server, said("hello"), path="/genkit/clerk?stream=true"))[-1]["result"]["finishReason"] == "stop"


def test_without_a_stream_the_result_is_the_reply(server: Serving) -> None:
    reply = call(server, said("hello"))
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json()) == {"result"}


def test_a_pause_streams_as_a_piece_of_the_models_message(server: Serving) -> None:
    paused, end, last = frames(call(server, said("pay 5"), stream=True))
    chunk = paused["message"]["modelChunk"]
    assert (chunk["role"], chunk["index"]) == ("model", 0)
    assert chunk["content"][0]["toolRequest"] == {"name": "pay", "ref": "r0", "input": {"amount": 5}}
    assert chunk["content"][0]["metadata"]["interrupt"] == {"amount": 5, "asked": 0}
    assert end["message"]["turnEnd"]["finishReason"] == last["result"]["finishReason"] == "interrupted"


def test_results_of_tools_come_with_what_was_asked_for(server: Serving) -> None:
    chunks = [
        f["message"]["modelChunk"]
        for f in frames(call(server, said("note x"), stream=True))
        if "message" in f and "modelChunk" in f["message"]
    ]
    assert [(c["role"], c["index"]) for c in chunks[:2]] == [("model", 0), ("tool", 1)]
    assert chunks[0]["content"][0]["toolRequest"]["input"] == {"text": "x"}
    assert chunks[1]["content"][0]["toolResponse"]["output"] == "x"
    assert {c["index"] for c in chunks[2:]} == {2}


def test_an_answer_streams_as_the_tools_message(server: Serving) -> None:
    paused = result(server, said("pay 5"))
    chunk = frames(call(server, responding(paused, 0), stream=True))[0]["message"]["modelChunk"]
    assert (chunk["role"], chunk["index"]) == ("tool", 0)
    assert chunk["content"][0]["toolResponse"] == {"name": "pay", "ref": "r0", "output": 0}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"data": {"message": "hello"}}, id="a text"),
        pytest.param({"data": "hello"}, id="nothing but a text"),
        pytest.param({"input": {"message": "hello"}}, id="under input"),
        pytest.param({"message": "hello"}, id="bare"),
        pytest.param({**said("hello"), "init": None}, id="no init"),
    ],
)
def test_the_shapes_that_genkits_servers_take_are_taken(server: Serving, body: Any) -> None:
    assert result(server, body)["message"]["content"] == [{"text": "you said hello"}]


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body,status",
    [
        pytest.param({"data": {}}, 422, id="nothing to do"),
        pytest.param({"data": {"message": "x", "resume": {"respond": []}}}, 422, id="message and resume"),
        pytest.param({"data": {"detach": True}}, 422, id="nothing to detach"),
        pytest.param({"data": {"message": {"role": "robot", "content": []}}}, 422, id="no role of ours"),
        pytest.param({"data": {"message": 5}}, 422, id="no message"),
        pytest.param({"data": {"message": "x"}, "init": {"state": {"messages": []}}}, 409, id="a state to a store"),
        pytest.param({"data": {"message": "x"}, "init": {"snapshotId": "n_none"}}, 404, id="an unknown snapshot"),
        pytest.param({"data": {"message": "x"}, "init": {"sessionId": ""}}, 422, id="an empty session"),
        pytest.param({"data": {"message": "x"}, "init": {"sessionId": "inner:x"}}, 422, id="a session of ours"),
        pytest.param({"data": {"message": "x"}, "init": {"sessionId": "\ud800"}}, 400, id="half a character"),
        pytest.param([1, 2], 422, id="a list"),
    ],
)
def test_what_cannot_be_done_is_a_problem_with_genkits_error_in_it(server: Serving, body: Any, status: int) -> None:
    raw = json.dumps(body).encode()
    with server.client() as client:
        reply = client.post("/genkit/clerk", content=raw, headers={"content-type": "application/json"})
    assert reply.status_code in (status, 422), reply.text
    problem = reply.json()
    assert reply.headers["content-type"] == "application/problem+json"
    assert problem["status"] == reply.status_code
    assert set(problem["error"]) >= {"status", "message"}
    assert problem["error"]["message"] == problem["detail"]


def test_over_a_stream_a_misuse_is_an_error_frame(server: Serving) -> None:
    body: Any = {**said("x"), "init": {"state": {"messages": []}}}
    reply = call(server, body, stream=True)
    assert reply.status_code == 200
    (frame,) = frames(reply)
    assert frame["error"]["status"] == "FAILED_PRECONDITION"
    assert "Cannot send 'state'" in frame["error"]["message"]


def test_over_a_stream_a_snapshot_that_never_was_is_an_outcome(server: Serving) -> None:
    (frame,) = frames(call(server, {**said("x"), "init": {"snapshotId": "n_none"}}, stream=True))
    assert (frame["result"]["finishReason"], frame["result"]["error"]["status"]) == ("failed", "NOT_FOUND")
    assert frame["result"]["error"]["details"]["reason"] == "SNAPSHOT_NOT_FOUND"


def test_a_snapshot_of_another_session_is_refused(server: Serving) -> None:
    one, other = result(server, said("one")), result(server, said("two"))
    body = {**said("x"), "init": {"snapshotId": one["snapshotId"], "sessionId": other["sessionId"]}}
    (frame,) = frames(call(server, body, stream=True))
    assert frame["error"]["status"] == "INVALID_ARGUMENT"
    assert "does not belong to session" in frame["error"]["message"]


def test_a_refused_decision_is_an_outcome_and_the_session_stands_where_it_stood(server: Serving) -> None:
    paused = result(server, said("pay 5"))
    resumes: list[Any] = [
        {"respond": [], "restart": []},
        {"respond": [{"toolResponse": {"name": "other", "ref": "r9", "output": 1}}]},
        {"restart": [{"toolRequest": {"name": "pay", "ref": "r0", "input": {"amount": 6}}}]},
        {"respond": [{"text": "yes"}]},
    ]
    for resume in resumes:
        refused = result(server, {"data": {"resume": resume}, "init": {"snapshotId": paused["snapshotId"]}})
        assert refused["finishReason"] == "failed"
        assert refused["snapshotId"] == paused["snapshotId"]
        assert refused["error"]["status"] == "INVALID_ARGUMENT"
    assert result(server, responding(paused, "fine"))["finishReason"] == "stop"


def test_a_batch_counts_as_a_whole_or_not_at_all(server: Serving) -> None:
    paused = result(server, said("pay 1 pay 2"))
    one, two = [responding(paused, n, n)["data"]["resume"]["respond"][0] for n in (0, 1)]
    two["toolResponse"]["ref"] = "r77"
    body = {"data": {"resume": {"respond": [one, two]}}, "init": {"snapshotId": paused["snapshotId"]}}
    assert result(server, body)["finishReason"] == "failed"
    assert len(result(server, {"data": {"message": "x"}, "init": {"snapshotId": paused["snapshotId"]}})["error"]) > 0
    two["toolResponse"]["ref"] = "r2"
    assert result(server, body)["message"]["content"] == [{"text": "done: [0, 1]"}]


def test_a_tools_failure_is_an_outcome(server: Serving) -> None:
    failed = result(server, said("explode"))
    assert (failed["finishReason"], failed["error"]["status"]) == ("failed", "INTERNAL")
    assert failed["error"]["details"] == {"kind": "ToolFailed", "reason": "TOOL_FAILED", "tool": "explode"}


# -- who may ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/genkit/clerk", "/genkit/clerk/getSnapshot", "/genkit/clerk/abort"])
def test_strangers_get_401_in_a_shape_that_clients_show(server: Serving, path: str) -> None:
    for who in (None, "nobody"):
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            headers = {} if who is None else {"authorization": "Bearer wrong"}
            reply = client.post(path, json=said("x"), headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["status"] == "UNAUTHENTICATED"
        assert reply.headers["www-authenticate"].startswith("Bearer")


def test_who_only_looks_does_not_talk(server: Serving) -> None:
    reply = call(server, said("x"), "eve")
    assert (reply.status_code, reply.json()["error"]["status"]) == (403, "PERMISSION_DENIED")
    (frame,) = frames(call(server, said("x"), "eve", stream=True))
    assert frame["error"]["status"] == "PERMISSION_DENIED"


def test_an_agent_that_is_not_there_is_unknown(server: Serving) -> None:
    for path in ("/genkit/nobody", "/genkit/nobody/getSnapshot", "/genkit/nobody/abort"):
        reply = call(server, said("x"), path=path)
        assert (reply.status_code, reply.json()["error"]["status"]) == (404, "NOT_FOUND")


def test_somebody_elses_session_looks_as_if_it_never_was(server: Serving) -> None:
    hers = result(server, {**said("pay 5"), "init": {"sessionId": "anns-own"}})
    never = {"snapshotId": "n_none"}
    for who in ("ben", "eve"):
        for lookup in ({"snapshotId": hers["snapshotId"]}, {"sessionId": "anns-own"}):
            assert result(server, {"data": lookup}, who, path="/genkit/clerk/getSnapshot") is None
    assert result(server, {"data": {"snapshotId": hers["snapshotId"]}}, "ben", path="/genkit/clerk/abort") == {
        "snapshotId": hers["snapshotId"]
    }
    assert result(server, {"data": never}, "ben", path="/genkit/clerk/abort") == never
    taken = call(server, responding(hers, "mine"), "ben")
    unknown = call(server, {**said("x"), "init": never}, "ben")
    assert (taken.status_code, unknown.status_code) == (404, 404)
    assert taken.json()["detail"].replace(hers["snapshotId"], "n_none") == unknown.json()["detail"]
    assert call(server, {**said("x"), "init": {"sessionId": "anns-own"}}, "ben").status_code == 404
    assert result(server, responding(hers, "ours"), "root")["finishReason"] == "stop"


def test_a_new_session_belongs_to_whoever_began_it_and_to_nobody_they_name(server: Serving, clerk: Clerk) -> None:
    body = {**said("hello"), "init": {"sessionId": "bens-own", "owner": "ann"}}
    result(server, body, "ben")
    assert result(server, {"data": {"sessionId": "bens-own"}}, "ann", path="/genkit/clerk/getSnapshot") is None
    owners = {s.id: s.owner for s in run_sync(clerk.ai.sessions.list(limit=1000))}
    assert owners["bens-own"] == "ben"


def test_the_audit_names_the_principal_and_not_whom_the_client_names(server: Serving, clerk: Clerk) -> None:
    paused = result(server, said("pay 5"))
    result(server, responding(paused, 1, by="the boss", adjourn={"by": "the boss"}))
    (decision,) = run_sync(clerk.ai.inbox.history(interrupt_of(paused)))
    assert (decision.by, decision.address, decision.verb) == ("ann", "127.0.0.1", "respond")


def test_rules_of_deciding_hold_here_too(clerk: Clerk) -> None:
    asked: list[tuple[str, str]] = []

    def can_decide(principal: Any, record: Any) -> bool:
        asked.append((principal.name, record.id))
        return record.input["amount"] != 66

    with serving(clerk.ai, auth(four_eyes=True, can_decide=can_decide)) as server:
        hers = result(server, said("pay 5"))
        refused = call(server, responding(hers, 1))
        assert refused.status_code == 403
        assert "four eyes" in refused.json()["error"]["message"]
        assert result(server, responding(hers, 1), "root")["finishReason"] == "stop"
        hers = result(server, said("pay 66"))
        refused = call(server, responding(hers, 1), "root")
        assert refused.status_code == 403
        restart = {"toolRequest": hers["message"]["content"][0]["toolRequest"]}
        body = {"data": {"resume": {"restart": [restart]}}, "init": {"sessionId": hers["sessionId"]}}
        assert call(server, body, "root").status_code == 403
        assert 66 not in clerk.paid
        assert asked[-1] == ("root", interrupt_of(hers))


def test_a_pause_cannot_be_named_by_nothing_but_its_tool_to_get_around_the_rules(clerk: Clerk) -> None:
    with serving(clerk.ai, auth(can_decide=lambda _, record: False)) as server:  # pyright: ignore[reportUnknownLambdaType]
        paused = result(server, said("pay 1 pay 2"))
        for named in ({"name": "pay"}, {"name": "pay", "ref": "r0"}, {"name": "pay", "ref": None}):
            part = {"toolResponse": {**named, "output": 1}}
            body = {"data": {"resume": {"respond": [part]}}, "init": {"snapshotId": paused["snapshotId"]}}
            reply = call(server, body)
            assert reply.status_code == 403 or reply.json()["result"]["finishReason"] == "failed"
        mine = paused["message"]["content"][0]["metadata"]["adjourn"]
        part = {
            "toolResponse": {"name": "pay", "output": 1},
            "metadata": {"adjourn": {"interrupt": mine["pause"]["id"]}},
        }
        body = {"data": {"resume": {"respond": [part]}}, "init": {"snapshotId": paused["snapshotId"]}}
        assert call(server, body).status_code == 403
        view = result(server, {"data": {"snapshotId": paused["snapshotId"]}}, path="/genkit/clerk/getSnapshot")
        assert view["finishReason"] == "interrupted"


# -- snapshots, background turns -------------------------------------------------------------------------------------


def test_a_snapshot_shows_the_whole_session(server: Serving) -> None:
    ended = result(server, said("note x"))
    view = result(server, {"data": {"snapshotId": ended["snapshotId"]}}, path="/genkit/clerk/getSnapshot")
    assert (view["status"], view["finishReason"], view["sessionId"]) == ("completed", "stop", ended["sessionId"])
    assert [m["role"] for m in view["state"]["messages"]] == ["user", "model", "tool", "model"]
    assert view["state"]["custom"] == {"notes": ["x"]}
    assert view["state"]["artifacts"] == [{"name": "notes", "parts": [{"text": "x"}]}]
    assert view["createdAt"].endswith("Z")
    assert "parentId" not in view


@pytest.mark.parametrize("lookup", [{}, {"snapshotId": "a", "sessionId": "b"}])
def test_a_lookup_names_one_thing(server: Serving, lookup: Any) -> None:
    assert call(server, {"data": lookup}, path="/genkit/clerk/getSnapshot").status_code == 422


def test_an_agent_without_a_store_has_no_snapshots_and_no_background(server: Serving) -> None:
    for path in ("/genkit/guest/getSnapshot", "/genkit/guest/abort"):
        assert call(server, {"data": {"snapshotId": "n"}}, path=path).status_code == 404
    detached = {"data": {"message": "x", "detach": True}}
    assert call(server, detached, path="/genkit/guest").json()["error"]["status"] in ("FAILED_PRECONDITION", "ABORTED")


def test_a_background_turn_is_told_of_at_once_and_aborted_by_its_snapshot(server: Serving) -> None:
    begun = frames(call(server, {"data": {"message": "slow 1", "detach": True}}, stream=True))
    assert len(begun) == 1
    snapshot = begun[0]["result"]["snapshotId"]
    assert begun[0]["result"]["finishReason"] == "detached"
    view = result(server, {"data": {"snapshotId": snapshot}}, path="/genkit/clerk/getSnapshot")
    assert (view["status"], "heartbeatAt" in view) == ("pending", True)
    aborting = {"data": {"snapshotId": snapshot}}
    assert call(server, aborting, "eve", path="/genkit/clerk/abort").status_code == 403
    assert result(server, aborting, path="/genkit/clerk/abort") == {"snapshotId": snapshot, "status": "pending"}
    assert result(server, aborting, path="/genkit/clerk/abort")["status"] == "aborted"


def test_a_decision_can_go_on_in_the_background(server: Serving) -> None:
    paused = result(server, said("pay 21"))
    body = responding(paused, 1)
    body["data"]["detach"] = True
    begun = result(server, body)
    assert begun["finishReason"] == "detached"
    view: Any = {}
    while view.get("status") != "completed":
        view = result(server, {"data": {"snapshotId": begun["snapshotId"]}}, path="/genkit/clerk/getSnapshot")
    assert view["state"]["messages"][-1]["content"] == [{"text": "done: 1"}]


def test_a_client_that_hangs_up_changes_nothing(server: Serving) -> None:
    body = {**said("pay 31"), "init": {"sessionId": "hung-up"}}
    with (
        server.client() as client,
        client.stream("POST", "/genkit/clerk", json=body, headers={"accept": "text/event-stream"}) as reply,
    ):
        next(reply.iter_lines())
    view: Any = None
    while view is None or view["status"] != "completed":
        view = result(server, {"data": {"sessionId": "hung-up"}}, path="/genkit/clerk/getSnapshot")
    assert view["finishReason"] == "interrupted"


def test_a_session_can_be_named_in_the_address(server: Serving) -> None:
    first = result(server, said("one"), path="/genkit/clerk?session_id=by-address")
    second = result(server, said("two"), path="/genkit/clerk?thread_id=by-address")
    assert first["sessionId"] == second["sessionId"] == "by-address"
    view = result(server, {"data": {"sessionId": "by-address"}}, path="/genkit/clerk/getSnapshot")
    assert view["parentId"] == first["snapshotId"]


# -- state that the client keeps -------------------------------------------------------------------------------------


def test_signed_state_goes_back_and_forth_and_altered_state_is_refused(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "sessions.db")
    clerk = Clerk(store, secret="a secret that signs states")
    with serving(clerk.ai) as server:
        first = result(server, said("hello"), path="/genkit/guest")
        state = first["state"]
        assert state["signature"]
        second = result(server, {**said("again"), "init": {"state": state}}, path="/genkit/guest")
        assert len(second["state"]["messages"]) == 4
        state["messages"][0]["content"][0]["text"] = "something else"
        altered = {**said("again"), "init": {"state": state}}
        assert call(server, altered, path="/genkit/guest").status_code == 422
        (frame,) = frames(call(server, altered, path="/genkit/guest", stream=True))
        assert frame["result"]["finishReason"] == "failed"
        assert "signed" in frame["result"]["error"]["message"]
    store.close()


def test_a_refused_decision_gives_the_clients_state_back(server: Serving) -> None:
    paused = result(server, said("pay 5"), path="/genkit/guest")
    body: Any = {"data": {"resume": {"respond": []}}, "init": {"state": paused["state"]}}
    refused = result(server, body, path="/genkit/guest")
    assert refused["finishReason"] == "failed"
    assert refused["state"]["messages"] == paused["state"]["messages"]

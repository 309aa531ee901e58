"""What an exception of a tool or a model said is told to whoever sees everybody's work, and to nobody else, anywhere."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from adjourn import Adjourn, MemoryStore
from adjourn.parts import ErrorInfo
from adjourn.server.live import session_frames
from adjourn.server.live_sessions import Journals
from adjourn.server.untold import untold
from adjourn.testing import ScriptedModel, call
from server.server_kit import Office, People, app_of, at

SAID = "no route to postgres://clerk:hunter2@10.0.0.7/prod"


def broken() -> Office:
    """The tool fails at "tool", the model at everything else."""

    def reply(request: Any) -> Any:
        if request.messages[-1].text == "tool":
            return call("connect", {})
        raise RuntimeError(SAID)

    office = Office()
    office.ai = Adjourn(model=ScriptedModel([reply], repeat_last=True))

    @office.ai.tool()
    async def connect() -> str:
        raise RuntimeError(SAID)

    office.ai.define_agent("clerk", store=office.store)
    office.ai.define_agent("loose")
    return office


@pytest.fixture
async def there() -> AsyncIterator[People]:
    async with at(app_of(broken())) as people:
        yield people


def told(reply: Any) -> bool:
    assert reply.status_code == 200, reply.text
    assert "ailed" in reply.text, reply.text
    return SAID in reply.text


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_an_owner_is_told_that_it_failed_and_who_looks_after_all_is_told_what_it_said(
    there: People, what: str
) -> None:
    run = await there["ann"]("POST", "/api/agents/clerk/send", {"message": what})
    assert not told(run)
    assert run.json()["error"]["kind"] == ("ToolFailed" if what == "tool" else "ModelError")
    session = run.json()["sessionId"]
    for path in ("", "/timeline", "/export"):
        address = f"/api/sessions/{session}{path}"
        assert {n: told(await there[n]("GET", address)) for n in ("ann", "looker", "root")} == {
            "ann": False,
            "looker": True,
            "root": True,
        }
    page = {"accept": "text/html"}
    assert not told(await there["ann"]("GET", f"/sessions/{session}", headers=page))
    assert told(await there["root"]("GET", f"/sessions/{session}", headers=page))
    assert not told(await there["ann"]("GET", "/api/export"))
    assert told(await there["root"]("GET", "/api/export"))
    again = f"/api/sessions/{session}/retry"
    assert not told(await there["ann"]("POST", again))
    assert told(await there["root"]("POST", again))


@pytest.mark.parametrize("what", ["tool", "model"])
@pytest.mark.parametrize("agent", ["clerk", "loose"])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_replies_and_streams_say_no_more(there: People, what: str, agent: str, accept: str) -> None:
    head = {"accept": accept}
    for name in ("ann", "root"):
        run = await there[name]("POST", f"/api/agents/{agent}/send", {"message": what}, headers=head)
        assert told(run) is (name == "root")
        wire = await there[name]("POST", f"/genkit/{agent}", {"data": {"message": what}}, headers=head)
        assert told(wire) is (name == "root")


async def test_snapshots_on_genkits_wire_say_no_more(there: People) -> None:
    run = (await there["ann"]("POST", "/api/agents/clerk/send", {"message": "tool"})).json()
    body = {"data": {"snapshotId": run["snapshotId"]}}
    found = {n: told(await there[n]("POST", "/genkit/clerk/getSnapshot", body)) for n in ("ann", "root")}
    assert found == {"ann": False, "root": True}


async def test_a_session_that_is_followed_says_no_more() -> None:
    office = broken()
    session = office.ai.agents["clerk"].connect()
    with pytest.raises(Exception, match="hunter2"):
        await session.send("tool").output
    for is_told in (False, True):
        frames = session_frames(Journals(office.store), session.id, None, 20.0, is_told)
        text = b""
        while b"turnEnded" not in text:
            text += await anext(frames)
        assert (SAID.encode() in text) is is_told
        await frames.aclose()


async def test_a_setting_tells_everybody() -> None:
    async with at(app_of(broken(), tell_errors=True)) as people:
        assert told(await people["ann"]("POST", "/api/agents/clerk/send", {"message": "tool"}))


async def test_an_export_that_says_less_is_read_back(there: People) -> None:
    await there["ann"]("POST", "/api/agents/clerk/send", {"message": "tool"})
    text = (await there["ann"]("GET", "/api/export")).text
    assert await Adjourn().sessions.import_(text.splitlines(), MemoryStore()) == 1


@pytest.mark.parametrize("kind", ["LimitReached", "Aborted", "Expired", "InvalidRequest", "HandlerAborted"])
def test_what_we_say_ourselves_is_told(kind: str) -> None:
    error = ErrorInfo("ABORTED", "twelve calls", kind)
    assert untold(error) is error


@pytest.mark.parametrize("kind", ["ToolFailed", "ModelError", "HandlerFailed", "ValueError", None])
@pytest.mark.parametrize("details", [None, {"tool": "pay", "more": SAID}, {"tool": [1]}, [1], "x"])
def test_what_anything_else_said_is_not(kind: str | None, details: Any) -> None:
    shown = untold(ErrorInfo("INTERNAL", SAID, kind, details))
    assert SAID not in msgspec.json.encode(shown).decode()
    assert shown.kind == kind

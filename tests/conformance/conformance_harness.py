"""Runs the language-neutral behaviour specs (agent.yaml, generate.yaml) through the public API.

The format is described in research/genkit.md, section 4.4. Whatever a spec holds that this does not know is an error: a
spec that is only half understood would pass for the wrong reason.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn import (
    Adjourn,
    AdjournError,
    Agent,
    AgentInit,
    AgentOutput,
    AgentSession,
    AgentTurn,
    Artifact,
    GenerateResponse,
    Interrupt,
    Message,
    ModelReply,
    ModelRequest,
    Part,
    Resume,
    Store,
    StreamChunk,
    ToolRunContext,
    TurnContext,
    TurnError,
)
from adjourn.parts import Chunk, convert, wire

Json = Any
TERMINAL = ("completed", "failed", "aborted")


class ProgrammableModel:
    """Per call i of one step: streams `stream_chunks[i]`, then returns `replies[i]`."""

    def __init__(self) -> None:
        self.program([], [])

    def program(self, replies: Sequence[Json], stream_chunks: Sequence[Sequence[Json]]) -> None:
        self._replies = list(replies)
        self._chunks = list(stream_chunks)
        self._calls = 0

    async def __call__(self, request: ModelRequest, emit: Any) -> ModelReply:
        position, self._calls = self._calls, self._calls + 1
        for chunk in self._chunks[position] if position < len(self._chunks) else ():
            emit(convert(chunk, Chunk))
        return convert(self._replies[position], ModelReply)


class Bench:
    """An application with the model, the tools and the agents that the specs name."""

    def __init__(self, store: Store | None) -> None:
        self.model = ProgrammableModel()
        self.ai = Adjourn(model="programmableModel")
        self.ai.define_model("programmableModel", self.model.__call__)
        self.agents: dict[str, Agent] = {}
        self._define_tools()
        self._define_prompt_agents(store)
        self._define_custom_agents(store)

    def _define_tools(self) -> None:
        @self.ai.tool(name="testTool", description="description")
        async def test_tool() -> str:
            return "tool called"

        @self.ai.tool(name="interruptTool")
        async def interrupt_tool(query: str) -> None:
            raise Interrupt

        @self.ai.tool(name="restartTool")
        async def restart_tool(action: str, ctx: ToolRunContext) -> dict[str, str]:
            if not ctx.is_resumed():
                raise Interrupt
            return {"result": f"did {action}"}

    def _define_prompt_agents(self, store: Store | None) -> None:
        define = self.ai.define_agent
        self.agents |= {
            "promptAgent": define("promptAgent", tools=[]),
            "promptAgentWithStore": define("promptAgentWithStore", tools=[], store=store),
            "promptAgentWithTools": define("promptAgentWithTools", tools=["testTool"]),
            "promptAgentWithInterrupt": define("promptAgentWithInterrupt", tools=["interruptTool"], store=store),
            "promptAgentWithRestartTool": define("promptAgentWithRestartTool", tools=["restartTool"], store=store),
        }

    def _define_custom_agents(self, store: Store | None) -> None:
        async def blocking(turn: TurnContext) -> str:
            await asyncio.Event().wait()
            return "done"

        async def failing(turn: TurnContext) -> str:
            raise RuntimeError("intentional failure")

        async def artifacts(turn: TurnContext) -> str:
            for name, text in (("doc1", "v1"), ("doc1", "v2"), ("doc2", "other")):
                turn.session.add_artifact(Artifact(name, [Part(text=text)]))
            return "done"

        async def next_artifact(turn: TurnContext) -> str:
            number = len(turn.session.artifacts) + 1
            turn.session.add_artifact(Artifact(f"doc{number}", [Part(text=f"content{number}")]))
            return "done"

        async def counting(turn: TurnContext) -> str:
            before: Json = turn.session.state or {}
            turn.session.update_state({"counter": before.get("counter", 0) + 1})
            return "done"

        async def several(turn: TurnContext) -> str:
            turn.session.update_state({"counter": 1, "status": "working"})
            turn.session.update_state({"counter": 2, "status": "working"})
            turn.session.update_state({"counter": 2, "status": "done"})
            return "done"

        define = self.ai.define_custom_agent
        for name, fn, kept in (
            ("customAgentBlocking", blocking, True),
            ("customAgentFailing", failing, True),
            ("customAgentWithArtifacts", artifacts, False),
            ("customAgentWithCustomState", counting, False),
            ("customAgentWithMultiCustomState", several, False),
            ("customAgentWithArtifactsStore", next_artifact, True),
            ("customAgentWithCustomStateStore", counting, True),
        ):
            self.agents[name] = define(name, fn, store=store if kept else None)


# -- the format ------------------------------------------------------------------------------------------------------


def only(what: str, value: Mapping[str, Json], known: str) -> None:
    """Refuses what this harness does not understand."""
    unknown = set(value) - set(known.split())
    assert not unknown, f"{what}: unknown fields {sorted(unknown)}"


def substituted(value: Json, names: Mapping[str, Json]) -> Json:
    """`{{name}}`, standing alone, replaced by what was captured under it."""
    if isinstance(value, str) and value.startswith("{{") and value.endswith("}}"):
        return names[value[2:-2]]
    if isinstance(value, Mapping):
        return {k: substituted(v, names) for k, v in cast(Mapping[str, Json], value).items()}
    if isinstance(value, list):
        return [substituted(v, names) for v in cast(list[Json], value)]
    return value


def contains(actual: Json, expected: Json, path: str = "$") -> None:
    """Every field that is expected is there; lists have the same length."""
    if isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), f"{path}: {actual!r} is no object"
        for key, value in cast(Mapping[str, Json], expected).items():
            assert key in actual, f"{path}.{key} is missing in {actual!r}"
            contains(cast(Mapping[str, Json], actual)[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        items, wanted = list(cast(Sequence[Json], actual)), cast(list[Json], expected)
        assert len(items) == len(wanted), f"{path}: {items!r} has not the length of {wanted!r}"
        for i, (a, b) in enumerate(zip(items, wanted, strict=True)):
            contains(a, b, f"{path}[{i}]")
    else:
        assert actual == expected, f"{path}: {actual!r} is not {expected!r}"


def fits(actual: Json, expected: Json) -> bool:
    try:
        contains(actual, expected)
    except AssertionError:
        return False
    return True


def contains_in_order(actual: Sequence[Json], expected: Sequence[Json], what: str) -> None:
    """The expected items are an ordered subsequence."""
    rest = iter(actual)
    for item in expected:
        assert any(fits(a, item) for a in rest), f"{what}: {item!r} is not (in this order) in {actual!r}"


def check_state(state: Json, expected: Mapping[str, Json]) -> None:
    only("stateContains", expected, "sessionId messages custom artifacts")
    assert state is not None, "there is no state"
    for key, value in expected.items():
        if key == "messages":
            contains_in_order(state.get("messages") or [], value, "messages")
        else:
            contains(state.get(key), value, f"state.{key}")


def check_presence(expected: Mapping[str, Json], key: str, value: Json) -> None:
    if key in expected:
        assert (value is not None) is expected[key], f"{key}: {value!r}"


# -- agent.yaml ------------------------------------------------------------------------------------------------------


class AgentSpec:
    """One test of agent.yaml, run step by step."""

    def __init__(self, bench: Bench, spec: Mapping[str, Json]) -> None:
        only("test", spec, "name description agent steps")
        self._bench = bench
        self._agent = bench.agents[spec["agent"]]
        self._steps: list[Mapping[str, Json]] = spec["steps"]
        self._names: dict[str, Json] = {}

    async def run(self) -> None:
        run = {
            "send": self._send,
            "getSnapshotData": self._get_snapshot,
            "abort": self._abort,
            "waitUntilCompleted": self._wait,
        }
        for step in self._steps:
            await run[step["type"]](substituted(step, self._names))

    # -- sending

    async def _send(self, step: Mapping[str, Json]) -> None:
        only(
            "send",
            step,
            "type init inputs modelResponses streamChunks expectChunks expectOutput expectError "
            "captureSnapshotId captureState captureSessionId",
        )
        self._bench.model.program(step.get("modelResponses", []), step.get("streamChunks", []))
        expected_error = step.get("expectError")
        if expected_error is not None:
            assert "expectOutput" not in step
            only("expectError", expected_error, "status message")
            raised = await self._raised(step)
            assert raised.status == expected_error["status"]
            assert expected_error["message"] in str(raised)
            return
        output, chunks = await self._exchange(step)
        if "expectChunks" in step:
            check_chunks(chunks, step["expectChunks"])
        if "expectOutput" in step:
            check_output(output, step["expectOutput"])
        state: Json = output.get("state") or {}
        captured: list[tuple[str, Json]] = [
            ("captureSnapshotId", output.get("snapshotId")),
            ("captureState", output.get("state")),
            ("captureSessionId", state.get("sessionId")),
        ]
        for field, value in captured:
            if field in step:
                assert value is not None, f"{field}: there is none in {output!r}"
                self._names[step[field]] = value

    async def _raised(self, step: Mapping[str, Json]) -> AdjournError:
        """What the exchange throws. Only opening the session may: what happens in a turn is an outcome on the wire."""
        try:
            await self._opened(step)
        except AdjournError as e:
            return e
        raise AssertionError("nothing was raised")

    async def _opened(self, step: Mapping[str, Json]) -> AgentSession:
        only("init", step["init"], "sessionId snapshotId state")
        return await self._agent.connect(convert(step["init"], AgentInit)).load()

    async def _exchange(self, step: Mapping[str, Json]) -> tuple[dict[str, Json], list[StreamChunk]]:
        session = await self._opened(step)
        inputs = cast(list[Mapping[str, Json]], step["inputs"])
        chunks: list[StreamChunk] = []
        output: dict[str, Json] = {}
        for position, given in enumerate(inputs):
            only("input", given, "message resume detach")
            if given == {"detach": True}:
                assert position > 0, "nothing to detach"
                continue  # the message before it was sent as a background turn
            alone = position + 1 < len(inputs) and inputs[position + 1] == {"detach": True}
            detach = bool(given.get("detach")) or alone
            turn = self._begun(session, given, detach)
            if detach:
                await turn.stored()
                output = {"sessionId": session.id, "snapshotId": turn.snapshot_id}
                continue
            chunks += [chunk async for chunk in turn.stream]
            output = await outcome(session, turn)
        return output, chunks

    def _begun(self, session: AgentSession, given: Mapping[str, Json], detach: bool) -> AgentTurn:
        if "resume" in given:
            only("resume", given["resume"], "respond restart")
            return session.resume(
                Resume(
                    respond=convert(given["resume"].get("respond", []), list[Part]),
                    restart=convert(given["resume"].get("restart", []), list[Part]),
                )
            )
        return session.send(convert(given["message"], Message), detach=detach)

    # -- looking

    async def _snapshot(self, step: Mapping[str, Json]) -> dict[str, Json]:
        ids = {"snapshot_id": step.get("snapshotId"), "session_id": step.get("sessionId")}
        view = await self._agent.get_snapshot(**{k: v for k, v in ids.items() if v is not None})
        assert view is not None, f"there is no snapshot {ids}"
        return {
            "snapshotId": view.id,
            "parentId": view.parent_id,
            "status": view.status,
            "finishReason": view.finish_reason,
            "error": wire(view.error),
            "state": {
                "sessionId": view.session_id,
                "messages": wire(view.messages),
                "custom": view.state,
                "artifacts": wire(view.artifacts),
            },
        }

    async def _get_snapshot(self, step: Mapping[str, Json]) -> None:
        only("getSnapshotData", step, "type snapshotId sessionId expectSnapshot")
        check_snapshot(await self._snapshot(step), step["expectSnapshot"])

    async def _wait(self, step: Mapping[str, Json]) -> None:
        only("waitUntilCompleted", step, "type snapshotId expectSnapshot timeoutMs")
        async with asyncio.timeout(step.get("timeoutMs", 5000) / 1000):
            while (snapshot := await self._snapshot(step))["status"] not in TERMINAL:  # noqa: ASYNC110 - a poll, as the format has it
                await asyncio.sleep(0.01)
        check_snapshot(snapshot, step["expectSnapshot"])

    async def _abort(self, step: Mapping[str, Json]) -> None:
        only("abort", step, "type snapshotId expectPreviousStatus")
        assert await self._agent.abort(step["snapshotId"]) == step["expectPreviousStatus"]


async def outcome(session: AgentSession, turn: AgentTurn) -> dict[str, Json]:
    """What the leg came to, as it goes over the wire: a failure is an outcome with an error."""
    try:
        return output_on_wire(await turn.output)
    except TurnError as e:
        kept: AgentOutput = e.response
        return {**output_on_wire(kept), "error": wire(kept.error)}
    except AdjournError as e:
        output: dict[str, Json] = {"sessionId": session.id, "finishReason": "failed"}
        return {**output, "snapshotId": session.snapshot_id, "error": {"status": e.status, "message": str(e)}}


def output_on_wire(output: AgentOutput) -> dict[str, Json]:
    whole = {
        "sessionId": output.session_id,
        "snapshotId": output.snapshot_id,
        "state": wire(output.client_state),
        "message": wire(output.message),
        "artifacts": wire(output.artifacts),
        "finishReason": output.finish_reason,
    }
    return {k: v for k, v in whole.items() if v is not None}


def check_output(output: dict[str, Json], expected: Mapping[str, Json]) -> None:
    only(
        "expectOutput",
        expected,
        "message finishReason hasSessionId hasSnapshotId hasState stateContains artifactsContain errorContains",
    )
    for key in ("message", "finishReason"):
        if key in expected:
            contains(output.get(key), expected[key], key)
    check_presence(expected, "hasSnapshotId", output.get("snapshotId"))
    check_presence(expected, "hasSessionId", (output.get("state") or output).get("sessionId"))
    check_presence(expected, "hasState", output.get("state"))
    if "stateContains" in expected:
        check_state(output.get("state"), expected["stateContains"])
    for artifact in expected.get("artifactsContain", []):
        artifacts: list[Json] = output.get("artifacts") or []
        found = [a for a in artifacts if a.get("name") == artifact["name"]]
        assert len(found) == 1, f"artifact {artifact['name']}: {found!r}"
        contains(found[0], artifact)
    if "errorContains" in expected:
        error = expected["errorContains"]
        only("errorContains", error, "status message")
        assert output["error"]["status"] == error["status"]
        assert error["message"] in output["error"]["message"]


def check_snapshot(snapshot: dict[str, Json], expected: Mapping[str, Json]) -> None:
    only("expectSnapshot", expected, "parentId status finishReason hasSessionId stateContains errorContains")
    for key in ("parentId", "status", "finishReason"):
        if key in expected:
            assert snapshot[key] == expected[key], key
    check_presence(expected, "hasSessionId", snapshot["state"]["sessionId"])
    if "stateContains" in expected:
        check_state(snapshot["state"], expected["stateContains"])
    if "errorContains" in expected:
        contains(snapshot["error"], expected["errorContains"], "error")  # a subset, with exact texts


def chunk_on_wire(chunk: StreamChunk) -> dict[str, Json]:
    if chunk.turn_end is not None:
        end = {"snapshotId": chunk.turn_end.snapshot_id, "finishReason": chunk.turn_end.finish_reason}
        return {"turnEnd": end}
    if chunk.custom_patch is not None:
        return {"customPatch": chunk.custom_patch}
    if chunk.artifact is not None:
        return {"artifact": wire(chunk.artifact)}
    assert chunk.raw is not None, chunk
    return {"modelChunk": {"role": chunk.raw.role, "index": chunk.raw.index, "content": wire(chunk.raw.content)}}


def check_chunks(chunks: Sequence[StreamChunk], expected: Sequence[Mapping[str, Json]]) -> None:
    for item in expected:
        only("chunk", item, "modelChunk turnEnd customPatch artifact")
    contains([chunk_on_wire(c) for c in chunks], list(expected), "chunks")


# -- generate.yaml ---------------------------------------------------------------------------------------------------


class GenerateSpec:
    """One test of generate.yaml."""

    def __init__(self, bench: Bench, spec: Mapping[str, Json]) -> None:
        only("test", spec, "name stream input modelResponses streamChunks expectChunks expectResponse")
        only("input", spec["input"], "model messages config tools")
        self._bench = bench
        self._spec = spec

    async def run(self) -> None:
        spec, given = self._spec, self._spec["input"]
        self._bench.model.program(spec["modelResponses"], spec.get("streamChunks", []))
        handle = self._bench.ai.generate_stream(
            messages=convert(given["messages"], list[Message]),
            model=given["model"],
            config=given["config"],
            tools=given.get("tools"),
        )
        chunks = [c async for c in handle.stream]
        if "expectChunks" in spec:
            assert spec["stream"]
            raw = [chunk_on_wire(c)["modelChunk"] for c in chunks]
            assert raw == spec["expectChunks"]
        contains(response_on_wire(await handle.response), without_dialect(spec["expectResponse"]), "response")


def without_dialect(value: Json) -> Json:
    """The spec's schemas name nothing but the dialect they are written in, which is no property of a tool."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Json], value).items()
        return {k: without_dialect(v) for k, v in items if k != "$schema"}
    if isinstance(value, list):
        return [without_dialect(v) for v in cast(list[Json], value)]
    return value


def response_on_wire(response: GenerateResponse[Any]) -> dict[str, Json]:
    request = response.request
    assert request is not None
    return {
        "custom": {},
        "finishReason": response.finish_reason,
        "message": wire(response.message),
        "request": {
            "messages": wire(request.messages),
            "output": {} if request.output_schema is None else {"schema": request.output_schema},
            "tools": wire(request.tools),
            "config": request.config,
        },
        "usage": wire(response.usage),
    }

"""What only the Temporal engine has to do: long steps, histories without content, big transcripts, lost deliveries."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus
from temporalio.converter import PayloadCodec

from adjourn import Adjourn, Agent, Part
from adjourn.engines.temporal import Temporal, Timing
from adjourn.errors import InvalidRequest, ModelError
from adjourn.handle import AgentInit
from adjourn.testing import ScriptedModel, call
from engines.engine_kit import HASTY, QUICK, rest, until, working, world
from engines.temporal_server import Server


async def test_a_long_step_is_handed_to_an_activity_with_heartbeats_and_runs_once(
    temporal: Server, tmp_path: Path
) -> None:
    async with world(temporal, tmp_path, [call("slow", {"n": 1})], "done", timing=HASTY) as w:
        turn = w.agent.connect().send("go")
        await until(lambda: w.log)
        handle = await w.handle(turn)

        async def waiting() -> bool:
            return bool((await handle.describe()).raw_description.pending_activities)

        await until(waiting)
        w.go.set()
        assert (await rest(turn)).text == "done"
        assert w.log == [("slow", 1)]


async def test_an_abort_reaches_a_long_step_on_its_worker(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("slow", {"n": 1})], "done", timing=HASTY, live=None) as w:
        turn = w.agent.connect().send("go")
        await until(lambda: w.log)
        view = await w.agent.abort(turn.snapshot_id, "enough")
        assert view == "pending"
        assert (await rest(turn)).finish_reason == "aborted"
        await until(lambda: "cancelled" in w.log)


async def test_the_history_of_a_turn_holds_nothing_of_what_was_said(temporal: Server, tmp_path: Path) -> None:
    replies = [[Part(text="secret text"), call("gate", {"n": 7})], "secret end"]
    async with world(temporal, tmp_path, *replies) as w:
        session = w.agent.connect()
        first = session.send("secret question")
        output = await rest(first)
        await rest(output.interrupts[0].restart({"why": "secret reason"}))
        raw = [e.SerializeToString() for e in (await w.history(first)).events]
        assert any(b"adjourn.tool" in event for event in raw)
        assert any(b"restarted" in event for event in raw)
        assert not any(b"secret" in event for event in raw)


async def test_a_pause_and_a_restart_take_thirteen_events(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 7})], "done") as w:
        first = w.agent.connect().send("go")
        output = await rest(first)
        handle = await w.handle(first)

        async def told() -> bool:  # the pause is stored before the server hears of it
            return len((await handle.fetch_history()).events) >= 6

        await until(told)
        await rest(output.interrupts[0].restart())
        assert len((await w.history(first)).events) == 13


async def test_a_transcript_larger_than_a_payload_may_be_is_no_trouble(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("big", {"size": 3_000_000})], "done") as w:
        turn = w.agent.connect().send("y" * 3_000_000)
        output = await rest(turn)
        assert output.text == "done"
        result = w.model.requests[-1].messages[-1].content[0].tool_response
        assert result is not None
        assert len(result.output) == 3_000_000
        # A busy machine may have it delivered again: one or two events more.
        assert len((await w.history(turn)).events) < 20


async def test_context_that_is_too_large_to_travel_is_refused_and_nothing_is_kept(
    temporal: Server, tmp_path: Path
) -> None:
    async with world(temporal, tmp_path, "done", worker=False) as w:
        session = w.agent.connect()
        with pytest.raises(InvalidRequest, match="65,536 bytes"):
            await rest(session.send("go", context={"much": "x" * 70_000}))
        assert await w.agent.get_snapshot(session_id=session.id) is None


class Scrambled(PayloadCodec):
    """Stands for encryption."""

    async def encode(self, payloads: Any) -> list[Payload]:
        return [Payload(metadata={"encoding": b"scrambled"}, data=p.SerializeToString()[::-1]) for p in payloads]

    async def decode(self, payloads: Any) -> list[Payload]:
        return [Payload.FromString(p.data[::-1]) for p in payloads]


async def test_a_codec_is_used_for_all_that_travels(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done", codec=Scrambled()) as w:
        first = w.agent.connect().send("go", context={"user": "someone"})
        output = await rest(first)
        assert (await rest(output.interrupts[0].restart())).text == "done"
        for event in (await w.history(first)).events:
            raw = event.SerializeToString()
            assert b"someone" not in raw
            assert b"sessionId" not in raw


async def test_a_model_that_is_away_for_a_moment_is_tried_again(temporal: Server, tmp_path: Path) -> None:
    away = ModelError("busy", provider="x", retryable=True)
    async with world(temporal, tmp_path, away, away, "at last") as w:
        assert (await rest(w.agent.connect().send("go"))).text == "at last"
        assert w.model.calls == 3


async def test_a_model_that_stays_away_fails_the_turn_and_keeps_it(temporal: Server, tmp_path: Path) -> None:
    away = ModelError("busy", provider="x", retryable=True)
    async with world(temporal, tmp_path, away, away, away, "at last") as w:
        session = w.agent.connect()
        with pytest.raises(ModelError, match="busy"):
            await rest(session.send("go"))
        assert (await rest(session.retry())).text == "at last"


async def test_chunks_reach_whoever_watches(temporal: Server, tmp_path: Path) -> None:
    chunks = [["let ", "me ", "see"], ["do", "ne"]]
    async with world(temporal, tmp_path, [call("big", {"size": 3})], "done", chunks=chunks) as w:
        turn = w.agent.connect().send("go")
        await rest(turn)
        chunks = [c async for c in turn.stream]
        assert [c.text for c in chunks if c.text] == ["let ", "me ", "see", "do", "ne"]
        assert [c.raw.index for c in chunks if c.raw is not None] == [0, 0, 0, 1, 2, 2]


async def test_without_a_line_the_journal_has_the_texts(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("big", {"size": 3})], "done", live=None) as w:
        turn = w.agent.connect().send("go")
        await rest(turn)
        assert [c.text async for c in turn.stream if c.text] == ["done"]


async def test_a_turn_that_begins_while_no_server_answers_is_run_later(temporal: Server, tmp_path: Path) -> None:
    deaf = Temporal("127.0.0.1:1", queue="q")
    async with world(temporal, tmp_path, "done", worker=False) as w:
        w.ai.engine = deaf
        turn = w.agent.connect().send("go")
        await until(lambda: w.agent.get_snapshot(snapshot_id=turn.snapshot_id))
        w.ai.engine = w.engine
        async with working(w.ai, w.engine):
            # The other engine's leg is nobody's when its lease ends: a worker's sweep takes it up.
            assert (await rest(turn)).text == "done"


async def test_a_wake_that_was_lost_is_said_again_by_a_workers_sweep(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done") as w:
        session = w.agent.connect()
        output = await rest(session.send("go"))
        wake = w.engine.wake
        w.engine.wake = lose
        turn = output.interrupts[0].restart()

        async def begun() -> bool:
            view = await w.agent.get_snapshot(session_id=session.id)
            return view is not None and view.status == "pending"

        await until(begun)
        assert not turn.done
        w.engine.wake = wake
        assert (await rest(turn)).text == "done"
        assert w.log == [("gate", 1)]


async def test_a_message_that_waited_for_a_pause_is_sent_though_whoever_said_it_is_gone(
    temporal: Server, tmp_path: Path
) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "first", "second") as w:
        w.agent.on_message_while_paused = "queue"
        session = w.agent.connect()
        output = await rest(session.send("go"))
        session.send("and more")
        await session.close()  # nobody of this process sends it
        await w.ai.inbox.restart(output.interrupts[0].id, run=False)

        async def sent() -> bool:
            view = await w.agent.get_snapshot(session_id=session.id)
            return view is not None and view.status != "pending" and view.messages[-1].text == "second"

        await until(sent)
        view = await w.agent.get_snapshot(session_id=session.id)
        assert view is not None
        assert [m.text for m in view.messages if m.role in ("user", "model") and m.text] == [
            "go", "first", "and more", "second",
        ]  # fmt: skip
        assert w.log == [("gate", 1)]


async def lose(work: Any) -> None:
    """A delivery that nobody gets."""


async def test_a_turn_that_ended_is_over_for_temporal_too(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})]) as w:
        session = w.agent.connect()
        first = session.send("go")
        await rest(first)
        await session.abort("enough")
        handle = await w.handle(first)
        assert await handle.result() == "aborted"
        assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED


async def test_a_workflow_that_is_cancelled_aborts_its_turn_running_or_paused(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], [call("slow", {"n": 1})], "done", timing=HASTY) as w:
        client = await w.engine.client()
        session = w.agent.connect()
        paused = session.send("go")
        output = await rest(paused)
        await client.get_workflow_handle(paused.snapshot_id).cancel()

        async def cancelled() -> bool:
            return (await w.ai.inbox.get(output.interrupts[0].id)).status == "cancelled"

        await until(cancelled)
        session = w.agent.connect()
        running = session.send("go")
        await until(lambda: w.log)
        await client.get_workflow_handle(running.snapshot_id).cancel()
        assert (await rest(running)).finish_reason == "aborted"
        assert (await rest(session.send("go on"))).text == "done"


async def test_a_worker_that_is_told_to_stop_finishes_what_it_runs(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("slow", {"n": 1})], "done", worker=False) as w:
        session = w.agent.connect()
        turn = session.send("go")

        async def let_go() -> None:
            await asyncio.sleep(0.3)
            w.go.set()

        async with working(w.ai, w.engine, grace=20.0):
            await until(lambda: w.log)
            going = asyncio.create_task(let_go())
        await going
        assert "cancelled" not in w.log
        async with working(w.ai, w.engine):
            assert (await rest(turn)).text == "done"
        assert w.log == [("slow", 1)]


async def test_another_process_that_opens_a_running_session_is_told_that_it_runs(
    temporal: Server, tmp_path: Path
) -> None:
    async with world(temporal, tmp_path, [call("slow", {"n": 1})], "done") as w:
        turn = w.agent.connect().send("go")
        await until(lambda: w.log)
        cold = Adjourn(model=ScriptedModel([]), engine=w.engine)
        other: Agent = cold.define_agent("a", store=w.agent.store)
        session_id = (await w.ai.sessions.list())[0].id
        with pytest.raises(Exception, match="is running elsewhere"):
            await other.connect(AgentInit(session_id=session_id)).load()
        w.go.set()
        assert (await rest(turn)).text == "done"


async def test_more_events_than_travel_at_once_come_in_pages(
    temporal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjourn.engines.stored._PAGE", 2)
    replies = [call("big", {"size": 1}), call("big", {"size": 2}), ValueError("broken"), "done"]
    async with world(temporal, tmp_path, *replies) as w:
        session = w.agent.connect()
        failed = session.send("go")
        with pytest.raises(ModelError):
            await rest(failed)
        await (await w.handle(failed)).result()
        output = await rest(session.retry())  # a new workflow, which has to hear of all that was
        assert output.text == "done"
        assert len(output.messages) == 6


@pytest.mark.slow
@pytest.mark.parametrize("timing", [QUICK, HASTY], ids=["short", "long"])
async def test_a_worker_that_is_told_to_stop_cancels_what_does_not_end_within_its_grace(
    temporal: Server, tmp_path: Path, timing: Timing
) -> None:
    async with world(temporal, tmp_path, [call("slow", {"n": 1})], "done", worker=False, timing=timing) as w:
        session = w.agent.connect()
        turn = session.send("go")
        async with working(w.ai, w.engine, grace=1.0):
            await until(lambda: w.log)
            await asyncio.sleep(0.6 if timing is HASTY else 0.0)  # it is handed over
        assert "cancelled" in w.log
        async with working(w.ai, w.engine):
            output = await rest(turn)
            assert output.interrupts[0].reason == "outcome_unknown"

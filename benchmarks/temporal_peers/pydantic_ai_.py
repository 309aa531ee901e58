"""Pydantic AI: its durability capability for Temporal, and a tool that raises ApprovalRequired."""

import asyncio
from typing import Any

from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

ran: list[str] = []


async def instant(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(p, ToolReturnPart) for p in messages[-1].parts):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("weather", {"place": "Kyoto"}, "r1")])


agent = Agent(
    FunctionModel(instant),
    name="careful",
    output_type=[str, DeferredToolRequests],
    capabilities=[TemporalDurability()],
)


@agent.tool
async def weather(ctx: RunContext[None], place: str) -> str:
    """The weather at a place, once somebody agrees."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired(metadata={"ask": f"look at {place}?"})
    ran.append(place)
    return f"sunny in {place}"


@workflow.defn
class Turn(PydanticAIWorkflow):
    __pydantic_ai_agents__ = (agent,)

    def __init__(self) -> None:
        self._paused = False
        self._agreed = False

    @workflow.run
    async def run(self, question: str) -> str:
        result = await agent.run(question)
        while isinstance(result.output, DeferredToolRequests):
            self._paused = True
            await workflow.wait_condition(lambda: self._agreed)
            answers = DeferredToolResults(approvals={c.tool_call_id: True for c in result.output.approvals})
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
        return str(result.output)

    @workflow.query
    def paused(self) -> bool:
        return self._paused

    @workflow.signal
    def agree(self) -> None:
        self._agreed = True


class RUNNER:
    async def start(self, address: str, queue: str) -> None:
        self._client = await Client.connect(address, plugins=[PydanticAIPlugin()])
        self._queue = queue
        # Without the sandbox, which costs the others time that Adjourn's pass-through does not.
        self._worker = Worker(
            self._client, task_queue=queue, workflows=[Turn], workflow_runner=UnsandboxedWorkflowRunner()
        )
        self._running = asyncio.create_task(self._worker.run())

    async def pause(self, key: str) -> Any:
        handle = await self._client.start_workflow(
            Turn.run, "What is the weather in Kyoto?", id=f"{self._queue}-{key}", task_queue=self._queue
        )
        while not await handle.query(Turn.paused):  # noqa: ASYNC110 - the library has no other way to hear of it
            await asyncio.sleep(0.005)
        return handle

    async def decide(self, paused: Any) -> None:
        before = len(ran)
        await paused.signal(Turn.agree)
        assert await paused.result() == "done"
        assert len(ran) > before

    async def history(self, paused: Any) -> tuple[int, int]:
        events = (await paused.fetch_history()).events
        return len(events), sum(e.ByteSize() for e in events)

    async def stop(self) -> None:
        await self._worker.shutdown()
        await self._running

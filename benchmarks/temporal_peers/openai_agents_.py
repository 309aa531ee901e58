"""OpenAI Agents SDK: its plugin for Temporal, and an activity as a tool that needs approval."""

import asyncio
from datetime import timedelta
from typing import Any

from agents import Agent, Runner, set_trace_processors
from agents.items import ModelResponse
from agents.models.interface import Model, ModelProvider
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.contrib.openai_agents.workflow import activity_as_tool
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

ran: list[str] = []


class Instant(Model):
    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        if isinstance(input, list) and any(item.get("type") == "function_call_output" for item in input):
            output = assistant_message("done")
        else:
            output = function_call("weather", {"place": "Kyoto"}, call_id="r1")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class Provider(ModelProvider):
    def get_model(self, model_name: str | None) -> Model:
        return Instant()


@activity.defn
async def weather(place: str) -> str:
    """The weather at a place, once somebody agrees."""
    ran.append(place)
    return f"sunny in {place}"


@workflow.defn
class Turn:
    def __init__(self) -> None:
        self._paused = False
        self._agreed = False

    @workflow.run
    async def run(self, question: str) -> str:
        tool: Any = activity_as_tool(weather, start_to_close_timeout=timedelta(seconds=60))
        tool.needs_approval = True
        agent = Agent(name="careful", model="instant", tools=[tool])
        result = await Runner.run(agent, question)
        while result.interruptions:
            self._paused = True
            await workflow.wait_condition(lambda: self._agreed)
            state = result.to_state()
            for item in result.interruptions:
                state.approve(item)
            result = await Runner.run(agent, state)
        return str(result.final_output)

    @workflow.query
    def paused(self) -> bool:
        return self._paused

    @workflow.signal
    def agree(self) -> None:
        self._agreed = True


class RUNNER:
    async def start(self, address: str, queue: str) -> None:
        set_trace_processors([])
        plugin = OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=60)),
            model_provider=Provider(),
        )
        self._client = await Client.connect(address, plugins=[plugin])
        self._queue = queue
        self._worker = Worker(
            self._client,
            task_queue=queue,
            workflows=[Turn],
            activities=[weather],
            workflow_runner=UnsandboxedWorkflowRunner(),
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

"""Google ADK: a Runner with the in-memory session service, and `require_confirmation`."""

import asyncio
import time
import warnings
from collections.abc import AsyncGenerator
from typing import Any

warnings.filterwarnings("ignore")  # it says of half of itself that it is experimental

from google.adk.agents import LlmAgent  # noqa: E402
from google.adk.agents.run_config import RunConfig, StreamingMode  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.adk.runners import Runner  # noqa: E402
from google.adk.sessions import InMemorySessionService  # noqa: E402
from google.adk.tools import FunctionTool  # noqa: E402
from google.genai import types  # noqa: E402

from benchmarks.peers import PLACE, QUESTION, WORD, expect  # noqa: E402

START = "from google.adk.agents import LlmAgent; from google.adk.runners import Runner"
DISTRIBUTIONS = ("google-adk",)
CONFIRMATION = "adk_request_confirmation"


USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, candidates_token_count=1)


def said(role: str, *parts: types.Part) -> types.Content:
    return types.Content(role=role, parts=list(parts))


class Instant(BaseLlm):
    """A model that answers at once."""

    chunks: int = 0
    yields: bool = False
    finished: float = 0.0

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        if self.chunks:
            for _ in range(self.chunks):
                yield LlmResponse(content=said("model", types.Part(text=WORD)), partial=True)
                if self.yields:
                    await asyncio.sleep(0)
            self.finished = time.perf_counter()
            yield LlmResponse(content=said("model", types.Part(text="done")), usage_metadata=USAGE)
        elif any(p.function_response for p in llm_request.contents[-1].parts):
            yield LlmResponse(content=said("model", types.Part(text="done")), usage_metadata=USAGE)
        else:
            call = types.Part.from_function_call(name=next(iter(llm_request.tools_dict)), args={"place": PLACE})
            yield LlmResponse(content=said("model", call), usage_metadata=USAGE)


class Run:
    """`runner.run_async`, a session made for each and deleted after it."""

    label = "google-adk"

    def __init__(self) -> None:
        self.model = Instant(model="instant")
        self.ran = 0
        self.sessions = InMemorySessionService()

        async def weather(place: str) -> str:
            """The weather at a place."""
            self.ran += 1
            return f"sunny in {place}"

        self.plain = self.runner("plain", [weather])
        self.careful = self.runner("careful", [FunctionTool(weather, require_confirmation=True)])
        self.silent = self.runner("silent", [])

    def runner(self, name: str, tools: list[Any]) -> Runner:
        agent = LlmAgent(name=name, model=self.model, tools=tools)
        return Runner(app_name=name, agent=agent, session_service=self.sessions)

    async def run(self, runner: Runner, session: str, *parts: types.Part) -> list[Any]:
        asked = said("user", *parts)
        return [e async for e in runner.run_async(user_id="u", session_id=session, new_message=asked)]

    async def open(self, runner: Runner) -> str:
        return (await self.sessions.create_session(app_name=runner.app_name, user_id="u")).id

    async def forget(self, runner: Runner, session: str) -> None:
        await self.sessions.delete_session(app_name=runner.app_name, user_id="u", session_id=session)

    async def tool_turn(self) -> None:
        session = await self.open(self.plain)
        events = await self.run(self.plain, session, types.Part(text=QUESTION))
        await self.forget(self.plain, session)
        expect("text", events[-1].content.parts[0].text, "done")

    async def pause(self) -> Any:
        session = await self.open(self.careful)
        events = await self.run(self.careful, session, types.Part(text=QUESTION))
        calls = [c for e in events for c in e.get_function_calls() if c.name == CONFIRMATION]
        expect("confirmations", len(calls), 1)
        return session, calls[0].id

    async def resume(self, paused: Any) -> None:
        session, call = paused
        answer = types.FunctionResponse(id=call, name=CONFIRMATION, response={"confirmed": True})
        events = await self.run(self.careful, session, types.Part(function_response=answer))
        await self.forget(self.careful, session)
        expect("text", events[-1].content.parts[0].text, "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.model.chunks, self.model.yields = chunks, yields
        try:
            came = 0
            session = await self.open(self.silent)
            asked = said("user", types.Part(text=QUESTION))
            config = RunConfig(streaming_mode=StreamingMode.SSE)
            events = self.silent.run_async(user_id="u", session_id=session, new_message=asked, run_config=config)
            async for event in events:
                if event.partial and event.content.parts[0].text == WORD:
                    came += 1
                    if pace:
                        await asyncio.sleep(pace)
            await self.forget(self.silent, session)
        finally:
            self.model.chunks = 0
        return came, self.model.finished


CANDIDATES = {"run": Run}

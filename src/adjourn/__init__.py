"""Adjourn: tool calls that can pause, be corrected and resume."""

from adjourn.answer import Abort, Answer, PausedCall, decline_interrupt, respond_to_interrupt, restart_tool
from adjourn.agent import Agent, TurnContext
from adjourn.app import Adjourn, Genkit, run_sync
from adjourn.errors import *  # noqa: F403
from adjourn.events import Limits
from adjourn.generation import GenerateResponse
from adjourn.handle import AgentInit, AgentInterrupt, AgentOutput, AgentTurn, Resume, SessionState
from adjourn.parts import (
    Artifact,
    Chunk,
    Media,
    Message,
    Part,
    TextPart,
    ToolRequest,
    ToolRequestPart,
    ToolResponse,
    ToolResponsePart,
    Usage,
)
from adjourn.session import AgentSession
from adjourn.store import InMemoryLatestStateStore, MemoryStore
from adjourn.tool import AbortSignal, Backoff, Interrupt, Tool, ToolOutput, ToolRunContext, tool

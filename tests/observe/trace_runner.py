"""One process of an application that traces: `pause`, `resume` or `decide` on one SQLite file; prints its spans as JSON.

python trace_runner.py pause|resume|decide PATH INTERRUPT
"""

import asyncio
import json
import sys
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adjourn import Adjourn, AgentInit, Interrupt, ToolRunContext
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call
from adjourn.tracing import Tracing

SESSION = "s-traced"


async def main(what: str, path: str, interrupt: str) -> dict[str, Any]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    replies = [call("pay", {"amount": 3})] if what == "pause" else ["paid"]
    store = SQLiteStore(path)
    ai = Adjourn(observers=[Tracing(provider)], model=ScriptedModel(replies), stores=[store])

    @ai.tool()
    async def pay(amount: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "ok"

    if what == "decide":  # a process that knows no agent
        await ai.inbox.restart(interrupt, by="ann")
    else:
        agent = ai.define_agent("clerk", store=store)
        if what == "pause":
            output = await agent.connect(AgentInit(session_id=SESSION)).send("go").output
            interrupt = output.interrupts[0].id
        else:
            for turn in await ai.recover():
                await turn.output
    await ai.aclose()
    return {"interrupt": interrupt, "spans": [shown(s) for s in exporter.get_finished_spans()]}


def shown(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "trace": context.trace_id,
        "span": context.span_id,
        "parent": span.parent.span_id if span.parent else None,
        "links": [[n.context.trace_id, n.context.span_id, dict(n.attributes or {})] for n in span.links],
        "attributes": dict(span.attributes or {}),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))

"""An observer that opens OpenTelemetry spans, by the semantic conventions for generative AI. Needs the `otel` extra.

    ai = Adjourn(observers=[Tracing()])

One leg of a turn is an `invoke_agent` span, and in it are `chat` and `execute_tool` spans. A turn that pauses ends its
span: nobody holds one open for days. The leg that goes on, in whatever process, has a span of its own with a link to it.
So that a cold process finds it, the paused leg's traceparent is kept in its snapshot and in the records of its pauses. Ids
that are derived from ours, which would need no such field, were rejected: the ids of a span are the tracer provider's to
make, and an application that brings its provider keeps its own.

Attributes are ids, names and numbers. Messages, inputs and results are left out, and so are the texts of errors, unless
`capture_content=True` asks for them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

from adjourn.errors import MissingExtra
from adjourn.model import ModelReply, ModelRequest
from adjourn.observe import Observed, around
from adjourn.parts import Message, Part, encode, to_json
from adjourn.tool import Interrupt, ToolOutput

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
except ImportError as e:
    raise MissingExtra("Tracing", "otel") from e

__all__ = ["Tracing"]

_PROVIDERS = {"googleai": "gcp.gemini", "vertexai": "gcp.vertex_ai"}
_REMOTE = ("openai", "anthropic", "googleai", "vertexai")
_ROLES = {"model": "assistant"}
_FINISHES = {"blocked": "content_filter", "failed": "error", "aborted": "error"}
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "topP": "top_p",
    "top_k": "top_k",
    "topK": "top_k",
    "max_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "maxOutputTokens": "max_tokens",
    "seed": "seed",
}
_NAMES = {
    "agent": "gen_ai.agent.name",
    "session_id": "gen_ai.conversation.id",
    "tool": "gen_ai.tool.name",
    "call_id": "gen_ai.tool.call.id",
    "error": "error.type",
}


class Tracing:
    """Spans through this tracer provider, or the global one as it is when the first span begins.

    `capture_content` adds messages, tool inputs and results, and the texts of errors, as the conventions lay them out.
    """

    def __init__(self, tracer_provider: "trace.TracerProvider | None" = None, capture_content: bool = False) -> None:
        self._tracer = trace.get_tracer("adjourn", version("adjourn"), tracer_provider)
        self._content = capture_content

    def __call__(self, step: Observed) -> AbstractContextManager[Any] | None:
        if step.kind == "turn":
            return _Turn(self._tracer, step, self._content)
        if step.kind == "model":
            return _Chat(self._tracer, step, self._content)
        if step.kind == "tool":
            return _Execute(self._tracer, step, self._content)
        if step.kind == "decision" and not around():
            self._decision(step)
        elif step.kind != "store" or not step.facts.get("ok", True):
            span = trace.get_current_span()
            if span.is_recording():
                span.add_event(f"adjourn.{step.kind}", {"adjourn.name": step.name, **_noticed(step.facts)})
        return None

    def _decision(self, step: Observed) -> None:
        """A decision outside of any turn is a span, since it may be alone in its process and has a pause to be linked to."""
        attributes = _noticed(step.facts)
        name = f"decide {step.name}" if step.name else "decide"
        self._tracer.start_span(name, links=_links(step.links, "decides"), attributes=attributes).end()


class _Step:
    """The span of one step. A subclass says what it is called and what is known at its end."""

    __slots__ = ("_content", "_span", "_step", "_token", "_tracer")
    kind = trace.SpanKind.INTERNAL

    def __init__(self, tracer: trace.Tracer, step: Observed, content: bool) -> None:
        self._tracer = tracer
        self._step = step
        self._content = content
        self._span: trace.Span = trace.INVALID_SPAN
        self._token: Any = None

    def begun(self) -> tuple[str, dict[str, Any]]:
        """The span's name, and the attributes that a sampler may want."""
        raise NotImplementedError

    def ended(self, span: trace.Span) -> None:
        raise NotImplementedError

    def told(self) -> Iterator[tuple[str, Any]]:
        """Content, as attributes; asked for only where it is wanted."""
        raise NotImplementedError

    def __enter__(self) -> trace.Span:
        name, attributes = self.begun()
        facts = self._step.facts
        attributes |= {_NAMES[k]: facts[k] for k in ("agent", "session_id") if facts.get(k)}
        how = "takes over" if facts.get("recovered") else "resumes"
        links = _links(self._step.links, how)
        outside = _outside(self._step.parent)
        self._span = self._tracer.start_span(name, outside, kind=self.kind, attributes=attributes, links=links)
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        span = self._span
        contexts.detach(self._token)
        if span.is_recording():
            self.ended(span)
            if kind is not None and issubclass(kind, Interrupt):
                span.set_attribute("adjourn.outcome", "paused")
            elif kind is not None:
                _failed(span, kind.__name__)
                if self._content and error is not None:
                    span.record_exception(error)
            if self._content:
                for key, value in self.told():
                    span.set_attribute(key, value)
        span.end()


class _Turn(_Step):
    __slots__ = ()

    def begun(self) -> tuple[str, dict[str, Any]]:
        step = self._step
        provider, model = _model(step.facts.get("model", ""))
        facts = step.facts
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "adjourn.resumed": bool(facts.get("resumed")),
        }
        for key in ("turn_id", "snapshot_id", "outer_turn_id", "outer_call_id"):
            if facts.get(key):
                attributes["adjourn." + key] = facts[key]
        return f"invoke_agent {step.name}" if step.name else "invoke_agent", attributes

    def __enter__(self) -> trace.Span:
        span = super().__enter__()
        context = span.get_span_context()
        if context.is_valid and context.trace_flags.sampled:  # what nobody exports is nothing to link to
            self._step.trace = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return span

    def ended(self, span: trace.Span) -> None:
        facts = self._step.facts
        outcome = facts.get("outcome", "lost")
        attributes = {
            "gen_ai.response.finish_reasons": [outcome],
            "adjourn.outcome": outcome,
            "adjourn.pauses": facts.get("pauses", 0),
            "adjourn.model_calls": facts.get("model_calls", 0),
            "gen_ai.usage.input_tokens": facts.get("input_tokens", 0),
            "gen_ai.usage.output_tokens": facts.get("output_tokens", 0),
        }
        if "limit" in facts:
            attributes["adjourn.limit"] = facts["limit"]
        span.set_attributes(attributes)
        if outcome == "failed":
            _failed(span, facts.get("error", "_OTHER"))

    def told(self) -> Iterator[tuple[str, Any]]:
        return iter(())  # the spans in it tell it, each once


class _Chat(_Step):
    __slots__ = ()

    @property
    def kind(self) -> trace.SpanKind:
        return trace.SpanKind.CLIENT if self._step.facts.get("provider") in _REMOTE else trace.SpanKind.INTERNAL

    def begun(self) -> tuple[str, dict[str, Any]]:
        step = self._step
        provider, model = _model(step.name)
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.request.stream": bool(step.facts.get("streaming")),
        }
        request = step.given
        if isinstance(request, ModelRequest):
            attributes |= _settings(request.config)
            if request.output_schema is not None:
                attributes["gen_ai.output.type"] = "json"
        return f"chat {model}", attributes

    def ended(self, span: trace.Span) -> None:
        facts = self._step.facts
        if "finish_reason" not in facts:
            return
        span.set_attribute("gen_ai.response.finish_reasons", [facts["finish_reason"]])
        span.set_attribute("gen_ai.usage.input_tokens", facts["input_tokens"])
        span.set_attribute("gen_ai.usage.output_tokens", facts["output_tokens"])
        if facts["cached_tokens"]:
            span.set_attribute("gen_ai.usage.cache_read.input_tokens", facts["cached_tokens"])
        if facts["reasoning_tokens"]:
            span.set_attribute("gen_ai.usage.reasoning.output_tokens", facts["reasoning_tokens"])

    def told(self) -> Iterator[tuple[str, Any]]:
        request, reply = self._step.given, self._step.result
        if isinstance(request, ModelRequest):
            system = [m for m in request.messages if m.role == "system"]
            if system:
                yield "gen_ai.system_instructions", _json([_part(p) for m in system for p in m.content])
            rest = [_message(m) for m in request.messages if m.role != "system"]
            yield "gen_ai.input.messages", _json(rest)
            if request.tools:
                yield "gen_ai.tool.definitions", _json([{"type": "function", "name": t.name} for t in request.tools])
        if isinstance(reply, ModelReply):
            calls = bool(reply.message.tool_requests)
            finish = "tool_call" if calls else _FINISHES.get(reply.finish_reason, reply.finish_reason)
            yield "gen_ai.output.messages", _json([{**_message(reply.message), "finish_reason": finish}])


class _Execute(_Step):
    __slots__ = ()

    def begun(self) -> tuple[str, dict[str, Any]]:
        facts = self._step.facts
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": self._step.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": facts.get("call_id", ""),
            "adjourn.attempt": facts.get("attempt", 1),
            "adjourn.restarts": facts.get("restarts", 0),
        }
        if facts.get("interrupt_id"):
            attributes["adjourn.interrupt_id"] = facts["interrupt_id"]
        return f"execute_tool {self._step.name}", attributes

    def ended(self, span: trace.Span) -> None:
        """Whether it returned or raised is all there is to say."""

    def told(self) -> Iterator[tuple[str, Any]]:
        yield "gen_ai.tool.call.arguments", _json(self._step.given)
        result = self._step.result
        yield "gen_ai.tool.call.result", _json(result.value if isinstance(result, ToolOutput) else result)


# -- attributes ------------------------------------------------------------------------------------------------------


def _failed(span: trace.Span, kind: str) -> None:
    # Without a description: the text of an error may hold what it failed on.
    span.set_attribute("error.type", kind)
    span.set_status(trace.StatusCode.ERROR)


def _model(name: str) -> tuple[str, str]:
    """The provider by the name that the conventions have for it, and the model's own name."""
    provider, slash, model = name.partition("/")
    return (_PROVIDERS.get(provider, provider), model) if slash else ("custom", name)


def _links(traces: Sequence[str], how: str) -> list[trace.Link]:
    found = [m for t in traces if (m := _TRACEPARENT.fullmatch(t))]
    return [trace.Link(_context(m), {"adjourn.link": how}) for m in found]


def _outside(parent: str | None) -> "contexts.Context | None":
    """The context of a turn's span in another process; None for the one we are in."""
    match = _TRACEPARENT.fullmatch(parent) if parent is not None else None
    if match is None:
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(_context(match)))


def _context(match: "re.Match[str]") -> trace.SpanContext:
    trace_id, span_id, flags = (int(g, 16) for g in match.groups())
    return trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))


def _noticed(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _NAMES.get(key, f"adjourn.{key}"): value
        for key, value in facts.items()
        if isinstance(value, (str, bool, int, float))
    }


def _settings(config: Any) -> dict[str, Any]:
    """The numbers of a config that the conventions have names for."""
    out: dict[str, Any] = {}
    for key, name in _SETTINGS.items():
        value = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out[f"gen_ai.request.{name}"] = value
    return out


# -- content ---------------------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    try:
        return encode(to_json(value)).decode()
    except Exception as e:  # noqa: BLE001 - a tool may return anything; its span is worth more than its result
        return encode({"unreadable": type(e).__name__}).decode()


def _message(message: Message) -> dict[str, Any]:
    return {"role": _ROLES.get(message.role, message.role), "parts": [_part(p) for p in message.content]}


def _part(part: Part) -> dict[str, Any]:
    if part.text is not None:
        return {"type": "text", "content": part.text}
    if part.reasoning is not None:
        return {"type": "reasoning", "content": part.reasoning}
    if (request := part.tool_request) is not None:
        return {"type": "tool_call", "id": request.ref, "name": request.name, "arguments": request.input}
    if (response := part.tool_response) is not None:
        return {"type": "tool_call_response", "id": response.ref, "response": response.output}
    if (media := part.media) is not None:
        kind = media.content_type or ""
        modality = kind.partition("/")[0] or "file"
        if media.url.startswith("data:"):  # megabytes, which no span is made for
            return {"type": "blob", "modality": modality, "mime_type": kind or None, "content": ""}
        return {"type": "uri", "modality": modality, "mime_type": kind or None, "uri": media.url}
    return {"type": "data", "content": part.data if part.data is not None else part.custom}

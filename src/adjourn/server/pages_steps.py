"""A session's timeline as pages show it: each entry as a step with words, a mark, and what can be unfolded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from adjourn.display import one_line, show_json, summary
from adjourn.parts import Message
from adjourn.server.pages_view import span, took
from adjourn.server.pages_words import DONE
from adjourn.store import SessionRecord
from adjourn.timeline import Entry

_MARKS = {
    "message": "→", "model": "✦", "tool": "⚙", "pause": "Ⅱ", "decision": "✓", "fork": "⑂", "crash": "!", "end": "■",
    "expired": "✕", "late_result": "↺", "retry": "↻", "engine": "◈",
}  # fmt: skip
_ENDS = {
    "stop": "Finished",
    "interrupted": "Waits for a decision",
    "aborted": "Aborted",
    "failed": "Failed",
    "length": "Finished (cut off for its length)",
    "blocked": "Finished (the reply was blocked)",
}
_ENGINE = {
    "engine": "engine", "workflow": "workflow", "run": "run", "runBefore": "run before", "queue": "task queue",
    "worker": "worker", "workerBefore": "worker before", "step": "step", "attempts": "attempts", "by": "told by",
    "snapshot": "snapshot", "redelivery": "redelivery", "timeout": "timeout", "cause": "cause", "seconds": "seconds",
    "result": "result", "reason": "reason",
}  # fmt: skip
_JSON = 20_000


class Step(msgspec.Struct, frozen=True):
    """One step of a session. `details` are texts to unfold, by name."""

    kind: str
    css: str
    mark: str
    title: str
    at: float
    took: float | None = None
    chips: Sequence[str] = ()
    text: str = ""
    details: Sequence[tuple[str, str]] = ()
    link: str = ""
    link_text: str = ""
    anchor: str = ""


class Call(msgspec.Struct, frozen=True):
    """What a message says of a tool call. `text` is the whole of it in one line."""

    what: str
    text: str


class Said(msgspec.Struct, frozen=True):
    """One message of a conversation, ready to be shown."""

    role: str
    who: str
    text: str
    calls: Sequence[Call] = ()


def steps(entries: Sequence[Entry], url: Callable[[str], str]) -> list[Step]:
    """The entries as steps, in order."""
    paused: dict[Any, float] = {}
    out: list[Step] = []
    for number, entry in enumerate(entries, 1):
        interrupt = entry.facts.get("interrupt")
        if entry.kind == "pause":
            paused[interrupt] = entry.at
        step = _step(entry, number, url)
        if entry.kind in ("decision", "expired") and interrupt in paused:
            step = msgspec.structs.replace(step, chips=[f"after {span(entry.at - paused[interrupt])}", *step.chips])
        out.append(step)
    return out


def _step(entry: Entry, number: int, url: Callable[[str], str]) -> Step:
    facts, kind = entry.facts, entry.kind
    title, text = entry.title, ""
    chips: list[str] = []
    details: list[tuple[str, str]] = []
    failed = kind in ("tool", "end") and "error" in facts
    if kind in ("message", "model"):
        title, text = _said(entry)
        chips = _tokens(facts)
    elif kind == "decision":
        tool = one_line(str(facts.get("tool") or "the call"), 60)
        who = one_line(str(facts.get("by") or "Somebody"), 80)
        edited = " with another input" if "inputBefore" in facts else ""
        title = f"{who} {DONE.get(str(facts.get('verb')), str(facts.get('verb')))} {tool}{edited}"
        text = str(facts.get("reason") or "")
    elif kind == "engine":
        named = [(key, _ENGINE[key]) for key in _ENGINE if facts.get(key) not in (None, "")]
        details.append(("Engine", "\n".join([f"{word}: {facts[key]}" for key, word in named])))
    if facts.get("worker") and kind != "engine":
        chips.append(f"worker {one_line(str(facts['worker']), 60)}")
    if kind == "end" and facts.get("limit"):
        chips.append(f"limit: {facts['limit']}")
    error = facts.get("error")
    if isinstance(error, Mapping):
        text = str(error.get("message", ""))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    named = [
        ("inputBefore", "Input before"),
        ("input", "Input"),
        ("output", "Result"),
        ("payload", "What it says"),
        ("metadata", "Note for the tool"),
    ]
    details += [(word, show_json(facts[key], limit=_JSON)) for key, word in named if _worth(facts, key)]
    if facts.get("waiting"):
        chips.append("not taken up yet")
    ran = entry.took
    if kind == "pause":  # it is not how long it waited
        chips += [f"ran {took(ran)} until then"] if ran is not None and ran >= 1 else []
        ran = None
    link = url(f"/inbox/{facts['interrupt']}") if facts.get("interrupt") and kind in ("pause", "expired") else ""
    return Step(
        kind, f"{kind}{' failed' if failed else ''}", _MARKS.get(kind, "·"), title, entry.at, ran, chips, text,
        details, link, "Open it", f"step-{number}",
    )  # fmt: skip


def _worth(facts: Mapping[str, Any], key: str) -> bool:
    return key in facts and not (key in ("payload", "metadata", "input", "inputBefore") and facts[key] in (None, {}))


def _said(entry: Entry) -> tuple[str, str]:
    message: Any = entry.facts.get("message")
    is_text = not isinstance(message, Mapping)
    parts: list[Any] = [] if is_text else list(message.get("content", ()))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    text = "\n".join(str(p["text"]) for p in parts if p.get("text"))
    if entry.kind == "message":
        return "Somebody wrote", text
    asked = ", ".join(str(c.get("tool", "")) for c in entry.facts.get("calls") or ())
    if is_text:
        return entry.title, str(message or "")
    return (f"The model asks for {one_line(asked)}" if asked else "The model replied"), text


def _tokens(facts: Mapping[str, Any]) -> list[str]:
    usage: Any = facts.get("usage") or {}
    given, made = usage.get("inputTokens", 0), usage.get("outputTokens", 0)
    return [f"{given:,} tokens in, {made:,} out"] if given or made else []


def totals(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """What the session took, in numbers."""
    used: list[Any] = [e.facts.get("usage") or {} for e in entries if e.kind == "model"]
    given, made = sum(u.get("inputTokens", 0) for u in used), sum(u.get("outputTokens", 0) for u in used)
    running = sum(e.took or 0.0 for e in entries)
    count = {kind: sum(e.kind == kind for e in entries) for kind in ("model", "tool", "decision")}
    return [
        ("Model calls", f"{count['model']:,}"),
        ("Tool runs", f"{count['tool']:,}"),
        ("Decisions", f"{count['decision']:,}"),
        ("Tokens", f"{given + made:,}"),
        ("Running time", took(running)),
    ]


def state_of(row: SessionRecord, now: float, finish: str | None) -> str:
    """Where a session stands, in words. `finish` is how it came to rest last."""
    if row.pending:
        return "Running" if row.lease_until > now else "Cut off; will be taken up"
    if row.waiting:
        return "Will go on"
    return _ENDS.get(finish or "", "At rest") if row.head else "New"


def is_moving(row: SessionRecord) -> bool:
    """Whether something is going on in it, or about to."""
    return row.pending or bool(row.waiting)


def conversation(messages: Sequence[Message]) -> list[Said]:
    """Messages as they are shown; the system's own are left out."""
    out: list[Said] = []
    for message in messages:
        if message.role == "system":
            continue
        calls = [
            *(
                Call("asks for", summary(p.tool_request.name, p.tool_request.input, 200))
                for p in message.content
                if p.tool_request
            ),
            *(
                Call(f"{one_line(r.name, 60)} gave", one_line(show_json(r.output, limit=400), 300))
                for r in message.tool_responses
            ),
            *(Call("attached", one_line(p.media.content_type or "a file", 80)) for p in message.content if p.media),
        ]
        who = {"user": "User", "model": "Agent", "tool": "Tool"}.get(message.role, message.role)
        if message.text or calls:
            out.append(Said(message.role, who, message.text, calls))
    return out

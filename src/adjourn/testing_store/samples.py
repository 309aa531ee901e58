"""Records to put into a store: every field of each set, none with its default."""

from typing import Any

from msgspec.structs import replace

from adjourn.events import Event, ModelReplied, Responded, Restarted, ToolReturned, ToolStarted, TurnEnded, UserSaid
from adjourn.parts import Artifact, ErrorInfo, Message, Part, ToolRequest, Usage
from adjourn.records import Change, Decision, InterruptRecord, Queued, Ran, SessionRecord, Snapshot

ODD: dict[str, Any] = {
    "ü": "日本 🌍 \u202e",
    "nul": "a\0b",
    "quotes": "'\"\\`;--",
    "": [None, False, 0, 0.0, "", [], {}],
    "n": 2**53,
}


def session_sample(id: str = "s1", **changes: Any) -> SessionRecord:
    whole = SessionRecord(
        id,
        "agent",
        1.5,
        2.25,
        owner="me",
        head="n1",
        pending=True,
        epoch=3,
        holder="driver",
        lease_until=17.125,
        waiting=2,
        queue=(Queued("q1", Message("user", [Part(text="later 🌍")])),),
        inner=("inner:one",),
    )
    return replace(whole, **changes)


def snapshot_sample(id: str = "n1", session_id: str = "s1", **changes: Any) -> Snapshot:
    whole = Snapshot(
        id,
        session_id,
        "turn",
        "agent",
        1.5,
        2.25,
        parent_id="before",
        status="failed",
        finish_reason="failed",
        error=ErrorInfo("INTERNAL", "broke", "ValueError", ODD),
        batches=2,
        messages=(Message("user", [Part(text="hi"), Part(data=ODD)], {"k": ODD}),),
        state=ODD,
        artifacts=(Artifact("a", [Part(text="x")], {"m": 1}),),
        folded=True,
        branch=True,
        heartbeat=9.5,
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        engine="clockwork",
        ran=(Ran(0, "worker 1"), Ran(2, "worker 2")),
        queued="q1",
    )
    return replace(whole, **changes)


def plain_snapshot(id: str, session_id: str = "s1", parent: str | None = None, **changes: Any) -> Snapshot:
    return replace(Snapshot(id, session_id, id, "agent", 1.0, 1.0, parent), **changes)


def interrupt_sample(id: str = "i1", session_id: str = "s1", **changes: Any) -> InterruptRecord:
    whole = InterruptRecord(
        id,
        session_id,
        "n1",
        "turn",
        "call",
        "agent",
        "tool",
        1.5,
        ref="ref",
        input=ODD,
        input_digest="abc",
        payload=ODD,
        response={"type": "boolean"},
        allow=("respond",),
        reason="approval",
        expires_at=99.5,
        on_expiry={"respond": False},
        owner="me",
        version="v1",
        status="open",
        path=("outer", "inner"),
        reopened=2,
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    return replace(whole, **changes)


def decision_sample(id: str = "d1", interrupt_id: str = "i1", session_id: str = "s1", **changes: Any) -> Decision:
    whole = Decision(
        id,
        interrupt_id,
        session_id,
        "restart",
        5.5,
        output=ODD,
        metadata=ODD,
        input=ODD,
        reason="because",
        by="her",
        address="10.0.0.1",
        input_digest="abc",
        applied=True,
        due=7.5,
        key="once",
    )
    return replace(whole, **changes)


def change_sample(interrupt_id: str = "i1", **changes: Any) -> Change:
    return replace(Change("", "settled", interrupt_id, "s1", 5.5, "d1"), **changes)


def events_sample(text: str = "hi") -> list[Event]:
    return [
        UserSaid(Message("user", [Part(text=text)])),
        ModelReplied(
            Message("model", [Part(tool_request=ToolRequest("t", "r", ODD), metadata={"thoughtSignature": "c2ln"})]),
            ("c1",),
            "stop",
            Usage(1, 2, 3, 4),
            0.5,
        ),
        ToolStarted("c1"),
        ToolReturned("c1", None),
        Restarted("i", {}, False),
        Responded("i", 0),
        TurnEnded("stop"),
    ]


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", [Part(text=text)]),)

"""The programs of the article, with only their imports changed."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from adjourn import (
    Genkit,
    Interrupt,
    LimitReached,
    Message,
    Part,
    TextPart,
    ToolFailed,
    ToolRunContext,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.model import ModelRequest
from adjourn.testing import ScriptedModel, call

EMAIL = {"to": "bob@example.com", "subject": "Hi", "body": "Lunch?"}


class EmailProgram:
    """The article's first program: a tool of four parameters that asks before it sends."""

    def __init__(self, *replies: Any) -> None:
        self.sent: list[tuple[str, str, str]] = []
        self.seen: list[Any] = []
        self.model = ScriptedModel([call("send_email", EMAIL, ref="r1"), *replies])
        self.ai = Genkit(model=self.model)

        @self.ai.tool()
        async def send_email(to: str, subject: str, body: str, ctx: ToolRunContext) -> dict[str, Any]:
            """Send an email. Pauses for approval on first call."""
            if not ctx.is_resumed():
                raise Interrupt({"to": to, "subject": subject, "needs_approval": True})
            self.seen.append(ctx.resumed_metadata)
            self.sent.append((to, subject, body))
            return {"status": "sent", "to": to}

        self.send_email = send_email


def tool_outputs(messages: Any) -> list[Any]:
    return [p.tool_response.output for m in messages if m.role == "tool" for p in m.content if p.tool_response]


async def test_a_tool_of_several_parameters_pauses_on_its_first_call_and_nothing_is_done() -> None:
    program = EmailProgram()
    response = await program.ai.generate(prompt="Invite Bob to lunch", tools=[program.send_email])
    assert response.finish_reason == "interrupted"
    assert program.sent == []
    assert program.model.calls == 1
    [interrupt] = response.interrupts
    assert interrupt.id
    assert interrupt.tool_request.name == "send_email"
    assert interrupt.tool_request.ref == "r1"
    assert interrupt.tool_request.input == EMAIL
    expected = {"to": "bob@example.com", "subject": "Hi", "needs_approval": True}
    assert interrupt.metadata["interrupt"] == expected
    assert interrupt.payload == expected


async def test_the_tool_does_its_work_exactly_once_after_a_restart() -> None:
    program = EmailProgram("Sent it.")
    paused = await program.ai.generate(prompt="Invite Bob", tools=[program.send_email])
    response = await program.ai.generate(
        messages=paused.messages,
        resume_restart=restart_tool(tool=program.send_email, interrupt=paused.interrupts[0]),
        tools=[program.send_email],
    )
    assert response.finish_reason == "stop"
    assert response.text == "Sent it."
    assert program.sent == [("bob@example.com", "Hi", "Lunch?")]
    assert tool_outputs(response.messages) == [{"status": "sent", "to": "bob@example.com"}]
    assert tool_outputs(program.model.requests[1].messages) == [{"status": "sent", "to": "bob@example.com"}]


async def test_a_bare_restart_makes_the_context_resumed_with_empty_metadata() -> None:
    program = EmailProgram("ok")
    paused = await program.ai.generate(prompt="x", tools=[program.send_email])
    await program.ai.generate(
        messages=paused.messages,
        resume_restart=restart_tool(interrupt=paused.interrupts[0]),
        tools=[program.send_email],
    )
    assert program.seen == [{}]


async def test_the_tool_reads_the_metadata_of_its_restart() -> None:
    program = EmailProgram("ok")
    paused = await program.ai.generate(prompt="x", tools=[program.send_email])
    await program.ai.generate(
        messages=paused.messages,
        resume_restart=[
            restart_tool(
                tool=program.send_email, interrupt=paused.interrupts[0], resumed_metadata={"approved_by": "eve"}
            )
        ],
        tools=[program.send_email],
    )
    assert program.seen == [{"approved_by": "eve"}]


async def test_a_response_replaces_the_run_and_the_model_sees_that_output() -> None:
    program = EmailProgram("Understood.")
    paused = await program.ai.generate(prompt="x", tools=[program.send_email])
    response = await program.ai.generate(
        messages=paused.messages,
        resume_respond=respond_to_interrupt({"status": "refused"}, interrupt=paused.interrupts[0]),
        tools=[program.send_email],
    )
    assert program.sent == []
    assert response.text == "Understood."
    assert tool_outputs(program.model.requests[1].messages) == [{"status": "refused"}]


@pytest.mark.parametrize("history", ["none", "before", "paused", "empty"])
async def test_a_resume_takes_the_history_from_before_the_pause_or_the_paused_one_or_none(history: str) -> None:
    program = EmailProgram("Understood.")
    messages = [Message(role="user", content=[Part(text="Invite Bob")])]
    paused = await program.ai.generate(messages=messages, tools=[program.send_email])
    given = {"none": None, "before": messages, "paused": paused.messages, "empty": []}[history]
    response = await program.ai.generate(
        messages=given,
        resume_respond=respond_to_interrupt({"status": "later"}, interrupt=paused.interrupts[0]),
        tools=[program.send_email],
    )
    assert response.text == "Understood."
    assert [m.role for m in response.messages] == ["user", "model", "tool", "model"]
    assert [m.role for m in program.model.requests[1].messages] == ["user", "model", "tool"]


async def test_a_restart_with_the_history_from_before_the_pause_runs_the_tool_once() -> None:
    program = EmailProgram("Sent.")
    messages = [Message(role="user", content=[TextPart(text="Invite Bob")])]
    paused = await program.ai.generate(messages=messages, tools=[program.send_email])
    response = await program.ai.generate(
        messages=messages,
        resume_restart=restart_tool(tool=program.send_email, interrupt=paused.interrupts[0]),
        tools=[program.send_email],
    )
    assert len(program.sent) == 1
    assert response.text == "Sent."


async def test_the_messages_of_the_caller_are_never_changed() -> None:
    program = EmailProgram("Sent.")
    messages = [Message(role="user", content=[TextPart(text="Invite Bob")])]
    paused = await program.ai.generate(messages=messages, tools=[program.send_email])
    kept = list(paused.messages)
    await program.ai.generate(
        messages=messages,
        resume_restart=restart_tool(interrupt=paused.interrupts[0]),
        tools=[program.send_email],
    )
    assert messages == [Message(role="user", content=[TextPart(text="Invite Bob")])]
    assert paused.messages == kept


async def test_the_back_off_loop_ends_by_the_tools_own_error_after_three_tries() -> None:
    model = ScriptedModel([call("fetch", {"url": "https://x"})])
    ai = Genkit(model=model)
    tries: list[int] = []

    @ai.tool()
    async def fetch(url: str, ctx: ToolRunContext) -> str:
        tried: int = ctx.resumed_metadata["tried"] if ctx.is_resumed() else 0
        tries.append(tried)
        if tried >= 3:
            raise RuntimeError(f"{url} is down")
        raise Interrupt({"will_retry": True, "tried": tried + 1, "delay": 2**tried})

    response = await ai.generate(prompt="fetch it", tools=[fetch])
    delays: list[int] = []

    async def back_off(response: Any) -> None:
        while response.interrupts:
            [interrupt] = response.interrupts
            delays.append(interrupt.payload["delay"])
            response = await ai.generate(
                messages=response.messages,
                resume_restart=restart_tool(
                    tool=fetch, interrupt=interrupt, resumed_metadata={"tried": interrupt.payload["tried"]}
                ),
                tools=[fetch],
            )

    with pytest.raises(ToolFailed) as caught:
        await back_off(response)
    assert tries == [0, 1, 2, 3]
    assert delays == [1, 2, 4]
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) == "https://x is down"
    assert "fetch" in str(caught.value)
    assert caught.value.tool == "fetch"
    assert model.calls == 1
    assert caught.value.response.messages


async def test_the_back_off_loop_goes_on_when_the_tool_recovers() -> None:
    model = ScriptedModel([call("fetch", {"url": "u"}), "Got it."])
    ai = Genkit(model=model)

    @ai.tool()
    async def fetch(url: str, ctx: ToolRunContext) -> str:
        tried: int = ctx.resumed_metadata["tried"] if ctx.is_resumed() else 0
        if tried < 2:
            raise Interrupt({"tried": tried + 1})
        return f"body of {url}"

    response = await ai.generate(prompt="fetch it", tools=[fetch])
    while response.interrupts:
        [interrupt] = response.interrupts
        response = await ai.generate(
            messages=response.messages,
            resume_restart=restart_tool(interrupt=interrupt, resumed_metadata=interrupt.payload),
            tools=[fetch],
        )
    assert response.text == "Got it."
    assert tool_outputs(response.messages) == ["body of u"]


async def test_all_restarts_so_far_can_be_read_oldest_first() -> None:
    model = ScriptedModel([call("pay", {"amount": 5}), "Paid."])
    ai = Genkit(model=model)
    seen: list[tuple[Any, ...]] = []

    @ai.tool()
    async def pay(amount: int, ctx: ToolRunContext) -> int:
        seen.append(tuple(ctx.restarts))
        if len(ctx.restarts) < 2:
            raise Interrupt({"stage": len(ctx.restarts)})
        return amount

    response = await ai.generate(prompt="pay", tools=[pay])
    for who in ("ann", "ben"):
        response = await ai.generate(
            messages=response.messages,
            resume_restart=restart_tool(interrupt=response.interrupts[0], resumed_metadata={"by": who}),
            tools=[pay],
        )
    assert response.text == "Paid."
    assert seen == [(), ({"by": "ann"},), ({"by": "ann"}, {"by": "ben"})]


class Invoice(BaseModel):
    number: str
    total: float


async def test_validate_and_correct_hands_the_model_a_repaired_pydantic_value() -> None:
    model = ScriptedModel([call("read_invoice", {"raw": "A-1;twelve"}), "The total is 12."])
    ai = Genkit(model=model)

    @ai.tool()
    async def read_invoice(raw: str) -> dict[str, Any]:
        number, total = raw.split(";")
        try:
            return Invoice.model_validate({"number": number, "total": total}).model_dump()
        except ValidationError as e:
            problems = [{"loc": list(p["loc"]), "msg": p["msg"]} for p in e.errors(include_url=False)]
            raise Interrupt({"number": number, "problems": problems}) from e

    paused = await ai.generate(prompt="read it", tools=[read_invoice])
    [interrupt] = paused.interrupts
    assert interrupt.payload["problems"][0]["loc"] == ["total"]
    response = await ai.generate(
        messages=paused.messages,
        resume_respond=respond_to_interrupt(Invoice(number="A-1", total=12), interrupt=interrupt),
        tools=[read_invoice],
    )
    assert tool_outputs(model.requests[1].messages) == [{"number": "A-1", "total": 12.0}]
    assert response.text == "The total is 12."


async def answer_for_ever(ai: Genkit, tool: Any) -> None:
    response = await ai.generate(prompt="go", tools=[tool])
    for _ in range(1000):
        response = await ai.generate(
            messages=response.messages,
            resume_respond=respond_to_interrupt("no", interrupt=response.interrupts[0]),
            tools=[tool],
        )


async def test_the_endless_loop_of_identical_pauses_ends_by_itself_as_repeats() -> None:
    model = ScriptedModel([call("ask", {"q": "again?"})], repeat_last=True)
    ai = Genkit(model=model)

    @ai.tool()
    async def ask(q: str) -> str:
        raise Interrupt({"q": q})

    with pytest.raises(LimitReached) as caught:
        await answer_for_ever(ai, ask)
    error = caught.value
    assert error.limit == "repeats"
    assert error.response.limit == "repeats"
    messages = error.response.messages
    assert messages[0].text == "go"
    assert sum(m.role == "model" for m in messages) == model.calls
    assert tool_outputs(messages).count("no") == model.calls - 1


async def test_the_endless_loop_of_different_pauses_ends_by_itself_as_cycles() -> None:
    asked = 0

    def another(request: ModelRequest) -> Any:
        nonlocal asked
        asked += 1
        return call("ask", {"q": f"question {asked}"})

    model = ScriptedModel([another], repeat_last=True)
    ai = Genkit(model=model)

    @ai.tool()
    async def ask(q: str) -> str:
        raise Interrupt({"q": q})

    with pytest.raises(LimitReached) as caught:
        await answer_for_ever(ai, ask)
    error = caught.value
    assert error.limit == "cycles"
    outputs = tool_outputs(error.response.messages)
    assert outputs.count("no") == 10
    assert model.calls == 11

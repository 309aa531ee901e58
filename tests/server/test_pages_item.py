"""The page of one item: what it shows, every decision, every refusal, and that nothing typed is lost."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from adjourn import Adjourn, AgentInit, MemoryStore
from adjourn.lease import transact
from adjourn.server import Server
from adjourn.store import Decision
from adjourn.testing import FakeClock, ScriptedModel, call
from server.pages_desk_kit import Desk, application
from server.pages_kit import Form, visitor
from server.server_kit import at


@pytest.fixture
async def desk(shared_app: Server) -> AsyncIterator[Desk]:
    clock, log = FakeClock(), list[Any]()
    ai = application(clock, log)
    shared_app.state.desk.ai = ai
    async with at(shared_app) as people:
        yield Desk(people, ai, clock, log, await visitor(people.client, "root"))


# -- what it shows ---------------------------------------------------------------------------------------------------


async def test_everything_needed_to_decide_is_on_the_page(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "Dear Bob,\nyours"})
    assert "clerk wants to run send" in page.text
    assert "Sends a letter." in page.text
    assert "It cannot be called back." in page.text
    assert "to Who gets it." in page.text
    assert "to bob body Dear Bob, yours" in page.text
    assert '"body": "Dear Bob,\\nyours"' in page.text
    assert "stamp first class" in page.text
    assert 'User ["send"' in page.text
    assert "asks for send(" in page.text
    assert "Owner ann" in page.text
    assert "Be kind." not in page.text


async def test_what_each_button_will_do_is_said_in_words(desk: Desk) -> None:
    page = await desk.open("pay", {"euros": 5})
    assert "Runs pay with exactly the input shown. The agent goes on at once." in page.text
    assert "pay does not run. The agent takes what you write as its result." in page.text
    assert "pay does not run. The agent is told that you refused, and why." in page.text
    assert "pay runs only after somebody approved it. It has not run." in page.text
    page = await desk.open("call_up", {"number": "17"})
    assert "call_up failed when clerk ran it" in page.text
    assert "17 is engaged" in page.text
    assert "Try again" in page.forms[1].buttons


async def test_a_run_of_unknown_outcome_is_told_as_that_with_the_result_that_came_late(desk: Desk) -> None:
    interrupt_id = await desk.pause("pay", {"euros": 5})

    def lose(tx: Any) -> None:
        row = tx.interrupt(interrupt_id)
        tx.put_interrupt(msgspec.structs.replace(row, reason="outcome_unknown"))
        tx.put_decision(
            Decision("d_late", interrupt_id, row.session_id, "late_result", 1.0, output={"paid": 5}, applied=True)
        )

    desk.ai.stores()[0].submit(lose).result()
    page = await desk.root.get(f"/inbox/{interrupt_id}")
    assert "Whether it took effect is not known" in page.text
    assert "If the first run did take effect, it then happened twice." in page.text
    assert "Run it again" in page.forms[1].buttons
    assert "A result that came late" in page.text
    assert "paid 5" in page.text


async def test_a_tool_that_is_not_here_is_said_to_be_not_here(desk: Desk) -> None:
    interrupt_id = await desk.pause("pay", {"euros": 5})

    def rename(tx: Any) -> None:
        tx.put_interrupt(msgspec.structs.replace(tx.interrupt(interrupt_id), agent="gone", tool="lost"))

    desk.ai.stores()[0].submit(rename).result()
    page = await desk.root.get(f"/inbox/{interrupt_id}")
    assert "This server does not have the code of this tool" in page.text
    assert "as soon as a process that has it takes it up" in page.text
    assert "The input itself cannot be changed here" in page.text


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}\u202egnp\u200b\x1b[31m\u2066\U000e0041 p\u0430ypal"


async def test_hostile_text_is_shown_for_what_it_is_everywhere(desk: Desk) -> None:
    page = await desk.open("send", {"to": HOSTILE, "body": HOSTILE})
    item = f"/inbox/{await desk.id_of(page)}"
    row = await desk.row(page)
    session = row.session_id

    def rename(tx: Any) -> None:  # as an owner of old may be called; a session with such a one is refused by now
        tx.put_session(replace(tx.session(session), owner=HOSTILE))
        tx.put_interrupt(replace(row, owner=HOSTILE))

    await transact(desk.ai.stores()[0], rename)
    for address in (item, "/inbox", f"/sessions/{session}", "/sessions"):
        page = await desk.root.get(address)
        assert "<script>alert" not in page.html
        assert "<img" not in page.html
        # All that is shown as text; a field that can be edited has to hold what it holds.
        assert not set(page.text + page.title) & set("\u202e\u200b\x1b\u2066\U000e0041"), address
    page = await desk.root.get(item)
    assert "⟨U+202E⟩" in page.text
    assert "{{7*7}}" in page.text
    assert "Mixes alphabets whose letters look alike" in page.text
    assert "Holds characters that would not be seen" in page.text
    assert "Look closely" in page.text
    assert "Look closely" not in (await desk.open("send", {"to": "bob", "body": "hello"})).text


async def test_a_megabyte_is_cut_and_says_so(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "x" * 1_000_000})
    assert page.status == 200
    assert "(996,000 more characters)" in page.text
    assert page.text.count("x" * 4000) < 30


# -- approving, declining --------------------------------------------------------------------------------------------


async def test_approving_runs_what_was_shown_and_tells_what_happened(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "hello"})
    page = await desk.root.send(page.form("/restart"), "Approve")
    assert page.status == 200
    assert "You approved it." in page.text
    page = await desk.rested(page)
    assert desk.log == [("bob", "hello", 1, {})]
    assert 'The tool said {"sent":"bob"}' in page.text
    assert "Finished." in page.text
    decision = (await desk.decisions(page))[0]
    assert (decision.verb, decision.by, decision.address) == ("restart", "root", "127.0.0.1")
    assert page.title.startswith("send: clerk")
    assert not any(f.action.endswith(("/restart", "/decline", "/respond")) for f in page.forms)


async def test_declining_tells_the_agent_why(desk: Desk) -> None:
    page = await desk.open("pay", {"euros": 5})
    page = await desk.rested(await desk.root.send(page.form("/decline"), reason="too much\r\nfor me"))
    assert "You declined it; pay did not run." in page.text
    assert "“too much for me”" in page.text
    assert (await desk.decisions(page))[0].reason == "too much\nfor me"
    assert desk.log == []


async def test_sending_the_same_form_twice_decides_once(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "hello"})
    first = await desk.root.send(page.form("/restart"))
    second = await desk.root.send(page.form("/restart"))
    assert (first.status, second.status) == (200, 200)
    assert "You approved it." in second.text
    await desk.rested(second)
    assert len(await desk.decisions(page)) == 1
    assert len(desk.log) == 1


# -- responding ------------------------------------------------------------------------------------------------------


async def test_an_answer_is_made_with_a_form_of_its_schema(desk: Desk) -> None:
    page = await desk.open("review", {"customer": "Ann"})
    assert "clerk asks you: review" in page.text
    form = page.form("/respond")
    assert not any(f.action.endswith("/restart") for f in page.forms)
    page = await desk.root.send(form, "Add", accepted="false", size='"large"')
    assert page.status == 200
    form = page.form("/respond")
    assert (form.fields["$.accepted"], form.fields["$.lines[0].quantity"]) == (["false"], ["1"])
    page = await desk.root.send(form, "Send answer", fields={"$.lines[0].sku": "cup", "$.lines[0].quantity": "3"})
    assert "You answered it" in page.text
    assert (await desk.decisions(page))[0].output == {
        "accepted": False,
        "size": "large",
        "lines": [{"sku": "cup", "quantity": 3}],
    }


async def test_errors_are_at_their_fields_and_nothing_typed_is_lost(desk: Desk) -> None:
    page = await desk.open("review", {"customer": "Ann"})
    page = await desk.root.send(page.form("/respond"), "Add", note="keep\r\nthis")
    typed = {"$.lines[0].sku": "cup", "$.lines[0].quantity": "many", "$.size": '"small"'}
    page = await desk.root.send(page.form("/respond"), "Send answer", fields=typed)
    assert page.status == 422
    assert "2 things to correct. Nothing was sent; all you wrote is kept." in page.text
    form = page.form("/respond")
    assert (form.fields["$.lines[0].sku"], form.fields["$.lines[0].quantity"]) == (["cup"], ["many"])
    assert form.fields["$.note"][0].split() == ["keep", "this"]
    assert form.fields["$.size"] == ['"small"']
    quantity = next(a for _, a in page.tags if a.get("name") == "$.lines[0].quantity")
    assert quantity["aria-invalid"] == "true"
    assert quantity["aria-describedby"].split()[0] in page.ids
    for link in (href for href in page.links.values() if href.startswith("#f")):
        assert link[1:] in page.ids
    assert (await desk.row(page)).status == "open"
    page = await desk.root.send(form, "Remove")
    assert "$.lines[0].sku" not in page.form("/respond").fields


async def test_the_json_editor_takes_over_and_gives_back(desk: Desk) -> None:
    page = await desk.open("review", {"customer": "Ann"})
    page = await desk.root.send(page.form("/respond"), "Write JSON instead", accepted="true", size='"large"')
    form = page.form("/respond")
    assert json.loads(form.fields["_json"][0]) == {"accepted": True, "size": "large", "lines": []}
    page = await desk.root.send(form, "Send answer", _json='{"accepted": true, "size": "huge",\n "lines": ]')
    assert page.status == 422
    assert "It is not JSON: " in page.text
    assert "line 2, column 11" in page.text
    assert page.form("/respond").fields["_json"] == ['{"accepted": true, "size": "huge",\n "lines": ]']
    page = await desk.root.send(
        page.form("/respond"), "Send answer", _json='{"accepted": true, "size": "huge", "lines": []}'
    )
    assert page.status == 422
    assert "size: must be one of 'small', 'large'" in page.text
    typed = '{"accepted": true, "size": "small", "lines": [{"sku": "pot"}]}'
    page = await desk.root.send(page.form("/respond"), "Use the form", _json=typed)
    assert page.form("/respond").fields["$.lines[0].sku"] == ["pot"]
    page = await desk.root.send(page.form("/respond"), "Send answer")
    assert (await desk.decisions(page))[0].output == {"accepted": True, "size": "small", "lines": [{"sku": "pot"}]}


async def test_without_a_schema_plain_words_are_the_answer_and_json_is_to_be_had(desk: Desk) -> None:
    page = await desk.open("ask", {"customer": "Ann"})
    page = await desk.root.send(page.form("/respond"), "Send answer", _text="42 <b>\r\n ok")
    assert (await desk.decisions(page))[0].output == "42 <b>\n ok"
    page = await desk.open("ask", {"customer": "Ann"})
    page = await desk.root.send(page.form("/respond"), "Write JSON instead", _text="42")
    page = await desk.root.send(page.form("/respond"), "Send answer", _json="false")
    assert (await desk.decisions(page))[0].output is False
    page = await desk.open("ask", {"customer": "Ann"})
    page = await desk.root.send(page.form("/respond"), "Send answer", _text="")
    assert (await desk.decisions(page))[0].output == ""


async def test_a_tool_that_says_what_it_wants_to_hear_has_its_answer_first(desk: Desk) -> None:
    page = await desk.open("guess", {"what": "a number"})
    verbs = [f.action.rpartition("/")[2] for f in page.forms if "/inbox/" in f.action]
    assert verbs == ["respond", "restart", "review", "decline"]
    page = await desk.root.send(page.form("/respond"), fields={"$": "seven"})
    assert page.status == 422
    assert page.form("/respond").fields["$"] == ["seven"]
    page = await desk.root.send(page.form("/respond"), fields={"$": "0"})
    assert (await desk.decisions(page))[0].output == 0


# -- editing ---------------------------------------------------------------------------------------------------------


async def test_an_edited_input_is_shown_as_a_difference_before_it_runs(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "one two three"})
    form = page.form("/review")
    assert (form.fields["$.to"], form.fields["$.body"], form.fields.get("$.copies")) == (
        ["bob"],
        ["one two three"],
        [""],
    )
    page = await desk.root.send(form, body="one 2 three", copies="4", _metadata="as agreed")
    assert page.status == 200
    assert "2 differences" in page.text
    assert "<del>two</del>" in page.html
    assert "<ins>2</ins>" in page.html
    assert "(not there)" in page.text
    assert "as agreed" in page.text
    assert desk.log == []
    page = await desk.root.send(page.form("/restart"), "Approve with these changes")
    page = await desk.rested(page)
    assert desk.log == [("bob", "one 2 three", 4, {"note": "as agreed"})]
    assert "You approved it with an edited input." in page.text
    decision = (await desk.decisions(page))[0]
    assert decision.input == {"to": "bob", "body": "one 2 three", "copies": 4}
    assert (await desk.row(page)).input == {"to": "bob", "body": "one two three"}
    audit = page.text.partition("Decisions so far")[2]
    assert "root approved with another input" in audit
    assert "one 2 three" in audit
    session = await desk.root.get(f"/sessions/{(await desk.row(page)).session_id}")
    assert "root approved send with another input" in session.text
    assert "Input before" in session.text


async def test_what_nobody_touched_is_no_difference_however_a_browser_sends_it(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob\x0b", "body": "one\rtwo\r\nthree\n", "copies": 2})
    form = page.form("/review")
    form.fields["$.body"] = ["one\r\ntwo\r\nthree\r\n"]
    form.fields["$.to"] = ["bob"]
    page = await desk.root.send(form, copies="3")
    assert "1 difference" in page.text
    assert "copies 2 3" in page.text
    assert json.loads(page.form("/restart").fields["_input"][0])["body"] == "one\rtwo\r\nthree\n"


async def test_from_the_review_one_can_go_back_and_edit_on(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "hello"})
    page = await desk.root.send(page.form("/review"), body="hi", _metadata='{"urgent": true}')
    page = await desk.root.send(page.form("/restart"), "Edit again")
    form = page.form("/review")
    assert (form.fields["$.body"], form.fields["_metadata"]) == (["hi"], ['{"urgent":true}'])
    assert (await desk.row(page)).status == "open"
    page = await desk.root.send(form, body="hello")
    assert "The input is unchanged" in page.text
    await desk.rested(await desk.root.send(page.form("/restart"), "Approve"))
    assert desk.log == [("bob", "hello", 1, {"urgent": True})]


async def test_an_edit_that_does_not_fit_is_refused_at_its_field(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "hello"})
    page = await desk.root.send(page.form("/review"), copies="0", body="kept", _metadata="{broken")
    assert page.status == 422
    assert "The note is not JSON" in page.text
    assert page.form("/review").fields["_metadata"] == ["{broken"]
    page = await desk.root.send(page.form("/review"), _metadata="")
    assert page.status == 422
    assert "must be at least 1" in page.text
    form = page.form("/review")
    assert (form.fields["$.copies"], form.fields["$.body"]) == (["0"], ["kept"])
    page = await desk.root.send(form, "Write JSON instead")
    assert json.loads(page.form("/review").fields["_json"][0]) == {"to": "bob", "body": "kept", "copies": 0}


async def test_a_review_that_was_tampered_with_is_checked_again(desk: Desk) -> None:
    page = await desk.open("send", {"to": "bob", "body": "hello"})
    page = await desk.root.send(page.form("/review"), body="hi")
    form = page.form("/restart")
    refused = await desk.root.send(form, fields={"_input": '{"to": 5}'})
    assert refused.status == 422
    assert (await desk.row(refused)).status == "open"
    broken = await desk.root.send(form, fields={"_input": "{"})
    assert broken.status == 422
    assert "The form came back damaged" in broken.text
    assert desk.log == []


async def test_of_a_nested_agents_call_the_inner_tool_is_shown_edited_and_run(shared_app: Server) -> None:
    log: list[Any] = []
    store = MemoryStore()
    script = [call("helper", {"task": "pay"}), call("pay", {"euros": 5}), "paid inside", "all done"]
    ai = Adjourn(model=ScriptedModel(script), clock=FakeClock())

    @ai.tool(approval=True)
    async def pay(euros: int) -> str:
        """Pays somebody."""
        log.append(euros)
        return "paid"

    helper = ai.define_agent("helper", store=store, tools=[pay])
    ai.define_agent("clerk", store=store, tools=[helper.as_tool()])
    shared_app.state.desk.ai = ai
    async with at(shared_app) as people:
        desk = Desk(people, ai, FakeClock(), log, await visitor(people.client, "root"))
        session = ai.agents["clerk"].connect(AgentInit(owner="ann"))
        await session.send("go").output
        assert "pay euros: 5" in (await desk.root.get("/inbox")).text
        page = await desk.root.get(f"/inbox/{session.interrupts[0].id}")
        assert "clerk wants to run pay Pays somebody." in page.text
        assert "Through helper" in page.text
        assert page.form("/review").fields["$.euros"] == ["5"]
        page = await desk.root.send(page.form("/review"), euros="4")
        assert "euros 5 4" in page.text
        page = await desk.rested(await desk.root.send(page.form("/restart")))
        assert "You approved it with an edited input." in page.text
        assert log == [4]


# -- what a form does not show ---------------------------------------------------------------------------------------


def first_row(form: Form) -> Form:
    """With the Remove of the first row, not the last, behind that word."""
    form.buttons["Remove"] = ("_remove", "$.crates[0]", "")
    return form


async def test_a_row_that_is_taken_out_takes_along_what_was_its_own_and_no_more(desk: Desk) -> None:
    page = await desk.open("pack", {"crates": [{"sku": "A", "lot": 1}, {"sku": "B", "lot": 2}]})
    page = await desk.root.send(first_row(page.form("/review")), "Remove")
    assert desk.log == []
    page = await desk.root.send(page.form("/review"), "Review the change")
    page = await desk.root.send(page.form("/restart"), "Edit again")
    assert page.form("/review").fields["$.crates[0].sku"] == ["B"]
    page = await desk.root.send(page.form("/review"), "Review the change", **{"$.crates[0].sku": "C"})
    page = await desk.root.send(page.form("/restart"), "Approve with these changes")
    await desk.rested(page)
    assert desk.log == [[{"sku": "C", "lot": 2}]]


async def test_what_was_written_as_json_and_has_no_field_survives_the_form(desk: Desk) -> None:
    page = await desk.open("count", {"customer": "Ann"})
    page = await desk.root.send(page.form("/respond"), "Write JSON instead")
    typed = '{"crates": [{"sku": "A", "lot": "</script>"}, {"sku": "B", "lot": 2}]}'
    page = await desk.root.send(page.form("/respond"), "Use the form", _json=typed)
    page = await desk.root.send(first_row(page.form("/respond")), "Remove")
    page = await desk.root.send(page.form("/respond"), "Send answer", **{"$.crates[0].sku": "Z"})
    assert (await desk.decisions(page))[0].output == {"crates": [{"sku": "Z", "lot": 2}]}


async def test_a_carried_value_that_was_damaged_costs_nothing_that_was_typed(desk: Desk) -> None:
    page = await desk.open("pack", {"crates": [{"sku": "A", "lot": 1}]})
    form = page.form("/review")
    page = await desk.root.send(form, "Review the change", _began="{nonsense", **{"$.crates[0].sku": "B"})
    page = await desk.root.send(page.form("/restart"), "Approve with these changes")
    await desk.rested(page)
    assert desk.log == [[{"sku": "B", "lot": 1}]]


async def test_a_list_that_can_take_no_more_rows_says_so(desk: Desk) -> None:
    page = await desk.open("pack", {"crates": [{"sku": "A"}] * 200})
    page = await desk.root.send(page.form("/review"), "Add another")
    assert page.status == 422
    assert "has as many rows as a form can show; write JSON to give more" in page.text

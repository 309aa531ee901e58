"""Deciding in a real browser: newcomers, forms, keys, two people at once, with scripts and without."""

from collections.abc import Callable

import pytest

from browser.browser_kit import Person, Place

Make = Callable[..., Place]
Enter = Callable[..., Person]
with_and_without_scripts = pytest.mark.parametrize("scripts", [True, False], ids=["script", "no-script"])


@with_and_without_scripts
def test_a_newcomer_finds_the_right_item_and_approves_it(place: Make, enter: Enter, scripts: bool) -> None:
    at = place()
    dana = enter(at, java_script_enabled=scripts)
    page = dana.page
    refund = at.one("refund", "lost in the mail")
    page.locator(".item", has_text="lost in the mail").get_by_role("link").click()
    assert page.get_by_role("heading", level=1).inner_text() == "support wants to run refund"
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("heading", name="You approved it.").wait_for()
    if scripts:
        dana.rested()
    else:
        while page.locator("#state [data-running]").count():
            page.get_by_role("link", name="Look again").click()
    assert "129.90 euros are on their way." in page.locator("#after").inner_text()
    assert [(d.verb, d.by) for d in at.history(refund.id)] == [("restart", "dana")]
    page.goto("/inbox")
    assert page.title() == "(8) Inbox · Adjourn"


@pytest.mark.slow
@with_and_without_scripts
def test_a_form_comes_back_with_its_errors_until_it_fits(place: Make, enter: Enter, scripts: bool) -> None:
    at = place()
    page = enter(at, java_script_enabled=scripts).go(at.one("review_order"))
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_label("Sku").fill("CUP-3")
    page.get_by_label("Quantity").fill("four")
    page.get_by_label("Discount").fill("200")
    page.get_by_label("high").check()
    page.get_by_label("Deliver on").fill("2031-05-06")
    page.get_by_label("Card").check()
    page.get_by_label("Last four").fill("12")
    page.get_by_label("Note").fill("line one\nline two")
    page.get_by_role("button", name="Send answer").click()
    alert = page.get_by_role("alert")
    alert.wait_for()
    told = alert.inner_text()
    for words in ("Accepted: is required", "Quantity: must be a whole number", "Discount: must be at most 50"):
        assert words in told
    assert page.get_by_label("Quantity").input_value() == "four"
    assert page.get_by_label("Quantity").get_attribute("aria-invalid") == "true"
    assert page.get_by_label("Note").input_value() == "line one\nline two"
    assert page.get_by_label("Deliver on").input_value() == "2031-05-06"
    page.get_by_label("Yes").check()
    page.get_by_label("Quantity").fill("4")
    page.get_by_label("Discount").fill("2.5")
    page.get_by_role("button", name="Send answer").click()
    alert.wait_for()
    assert "must have at least 4 characters" in page.get_by_role("alert").inner_text()
    page.get_by_label("Last four").fill("1234")
    page.get_by_role("button", name="Send answer").click()
    page.get_by_role("heading", name="You answered it").wait_for()
    (decision,) = at.history(page.url.rpartition("/")[2])
    assert decision.output == {
        "accepted": True, "priority": "high", "deliver_on": "2031-05-06", "discount": 2.5,
        "lines": [{"sku": "CUP-3", "quantity": 4}],
        "pay_by": {"kind": "card", "last_four": "1234"}, "note": "line one\nline two",
    }  # fmt: skip


@with_and_without_scripts
def test_an_edit_is_reviewed_before_it_runs(place: Make, enter: Enter, scripts: bool) -> None:
    at = place()
    email = at.one("send_email", "ann.oakley")
    page = enter(at, java_script_enabled=scripts).go(email)
    page.get_by_text("Change the input first").click()
    page.get_by_label("To", exact=True).fill("ann@example.com")
    page.get_by_role("button", name="Review the change").click()
    page.get_by_role("heading", name="1 difference").wait_for()
    assert page.locator("del").inner_text() == ".oakley"
    page.get_by_role("button", name="Approve with these changes").click()
    page.get_by_role("heading", name="You approved it with an edited input.").wait_for()
    (decision,) = at.history(email.id)
    assert decision.input == {**email.input, "to": "ann@example.com"}


def test_only_the_chosen_alternative_and_what_was_asked_for_are_shown(place: Make, enter: Enter) -> None:
    at = place()
    page = enter(at, java_script_enabled=False).go(at.one("review_order"))
    assert not page.get_by_label("Last four").is_visible()
    page.get_by_label("Transfer").check()
    assert page.get_by_label("Iban").is_visible()
    assert not page.get_by_label("Last four").is_visible()
    lines = page.get_by_label("Lines")
    assert page.get_by_role("button", name="Add").is_visible()
    lines.first.uncheck()
    assert not page.get_by_role("button", name="Add").is_visible()


@pytest.mark.slow
def test_two_people_race_and_one_decision_counts(place: Make, enter: Enter) -> None:
    at = place()
    dana, erik = enter(at), enter(at, "erik")
    for refund in at.waiting(tool="refund"):
        for person in (dana, erik):
            person.go(refund)
        dana.page.get_by_text("Decline").first.click()
        dana.page.locator("#reason").fill("I looked into it")
        # Both are sent before either is answered: one browser is driven from here, so the clicks must not wait, nor be lost
        # where a page has heard already that the other was quicker.
        dana.page.evaluate("setTimeout(() => document.querySelector('#decline form').requestSubmit())")
        erik.page.evaluate("setTimeout(() => document.querySelector('#approve').form.requestSubmit())")
        for person in (dana, erik):
            person.page.wait_for_selector("#after")
        decided = [d for d in at.history(refund.id) if d.verb in ("decline", "restart")]
        assert len(decided) == 1
        winner, loser = (dana, erik) if decided[0].by == "dana" else (erik, dana)
        assert winner.page.get_by_role("alert").count() == 0
        told = loser.page.get_by_role("alert").inner_text()
        assert f"{winner.name} {'declined' if winner is dana else 'approved'} this before your decision arrived" in told
        if loser is dana:
            assert "I looked into it" in told


@pytest.mark.slow
def test_the_whole_way_goes_by_keys(place: Make, enter: Enter) -> None:
    at = place()
    first, second = at.waiting()[:2]
    dana = enter(at)
    page = dana.page
    press = page.keyboard.press
    for key in ("j", "j", "j", "k"):
        press(key)
    assert page.evaluate("document.activeElement.closest('.item').dataset.id") == second.id
    press("x")
    assert "1 selected" in page.locator(".bulk").inner_text()
    press("x")
    press("Enter")
    page.wait_for_url(f"**/{second.id}")
    press("k")
    page.wait_for_url(f"**/{first.id}")
    press("j")
    page.wait_for_url(f"**/{second.id}")
    press("d")
    page.keyboard.type("jade and red are words")
    assert page.locator("#reason").input_value() == "jade and red are words"
    press("Escape")
    page.locator("#reason").blur()
    press("a")
    assert page.evaluate("document.activeElement.id") == "approve"
    assert at.row(second.id).status == "open"
    press("Enter")
    page.get_by_role("heading", name="You approved it.").wait_for()
    page.goto("/inbox")
    press("j")
    press("d")
    page.wait_for_url(f"**/{first.id}#decline")
    page.wait_for_selector("#reason:focus")
    page.keyboard.type("no")
    assert page.locator("#reason").input_value() == "no"


@pytest.mark.slow
def test_the_keys_are_explained_and_can_be_switched_off(place: Make, enter: Enter) -> None:
    page = enter(place()).page
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.get_by_label("Single-key shortcuts are on").uncheck()
    page.get_by_role("button", name="Close").click()
    page.goto("/inbox")
    page.keyboard.press("j")
    page.keyboard.press("?")
    assert not page.get_by_role("dialog").is_visible()
    assert page.evaluate("document.activeElement.closest('.item')") is None
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_role("dialog").wait_for()


@pytest.mark.slow
def test_several_are_approved_together(place: Make, enter: Enter) -> None:
    at = place()
    page = enter(at).page
    for row in at.waiting(tool="refund"):
        page.locator(f"#i-{row.id} .pick").click()
    page.get_by_role("button", name="Approve…").click()
    page.get_by_role("heading", name="Approve 3 items of refund?").wait_for()
    page.get_by_role("button", name="Approve 3 items").click()
    page.get_by_role("heading", name="3 of 3 items approved").wait_for()
    assert at.waiting(tool="refund") == []


@pytest.mark.slow
def test_a_button_pressed_twice_sends_once(place: Make, enter: Enter) -> None:
    at = place()
    refund = at.one("refund")
    dana = enter(at)
    page = dana.go(refund)
    page.get_by_role("button", name="Approve").dblclick()
    page.get_by_role("heading", name="You approved it.").wait_for()
    assert [d.verb for d in at.history(refund.id)] == ["restart"]

"""Hostile text made safe to show: nothing hidden, nothing that takes effect, and what is harmless left as it is."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjourn.display import mixed_scripts, one_line, show_json, summary, visible

PLAIN = "Zażółć gęślą jaźń — «ça va», 日本語, عربى, עברית, हिन्दी, ελληνικά\n\t."
EMOJI = ("❤️", "☎️ 5", "👩\u200d💻", "👨\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "3️⃣", "#️⃣", "👍🏽", "🧑🏿\u200d🚀")


@pytest.mark.parametrize("text", ["", "plain", PLAIN, "e\u0301", "a\n\tb"])
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", EMOJI, ids=range(len(EMOJI)))
def test_pictures_keep_what_holds_them_together(text: str) -> None:
    assert visible(text) == text
    assert one_line(text) == text
    assert json.loads(show_json([text])) == [text]
    assert text in show_json([text])


@pytest.mark.parametrize(
    "hidden, shown",
    [
        ("a\u200db", "a⟨U+200D⟩b"),
        ("a\ufe0f", "a⟨U+FE0F⟩"),
        ("1\ufe0f2", "1⟨U+FE0F⟩2"),
        ("❤\ufe0f\ufe0f", "❤\ufe0f⟨U+FE0F⟩"),
        ("❤\u200d", "❤⟨U+200D⟩"),
        ("\u200d💻", "⟨U+200D⟩💻"),
        ("👩\u200da", "👩⟨U+200D⟩a"),
        ("👩\ufe00", "👩⟨U+FE00⟩"),
        ("👩\U000e0101", "👩⟨U+E0101⟩"),
    ],
    ids=[
        "words",
        "letter",
        "digits",
        "twice",
        "at-the-end",
        "at-the-start",
        "before-a-letter",
        "text-style",
        "supplement",
    ],
)
def test_selectors_and_joiners_elsewhere_are_shown(hidden: str, shown: str) -> None:
    assert visible(hidden) == shown


@pytest.mark.parametrize(
    "code",
    [0x00, 0x07, 0x08, 0x0B, 0x0D, 0x1B, 0x7F, 0x85, 0x9B, 0xAD, 0x61C, 0x200B, 0x200E, 0x2028, 0x202E, 0x2060, 0x2066, 0x2069,
     0x2800, 0x3164, 0xE000, 0xFEFF, 0xFFA0, 0xFFF9, 0xE0041, 0xE0100, 0x10FFFF],
    ids=lambda code: f"{code:04X}",
)  # fmt: skip
def test_what_is_invisible_or_takes_effect_is_named(code: int) -> None:
    shown = visible(f"a{chr(code)}b")
    assert chr(code) not in shown
    assert shown.startswith("a")
    assert shown.endswith("b")
    assert len(shown) > 2


@given(st.text(st.characters(), max_size=60))
def test_nothing_hidden_is_left_in_any_text(text: str) -> None:
    shown = visible(text)
    for i, c in enumerate(shown):
        kind = unicodedata.category(c)
        if c in "\n\t":
            continue
        assert kind not in ("Cc", "Cs", "Co", "Zl", "Zp"), hex(ord(c))
        if kind == "Cf":  # only inside an emoji
            assert c == "\u200d"
            assert unicodedata.category(shown[i - 1]) in ("So", "Sk", "Sm", "Mn", "Cn"), shown[i - 1]


@given(st.text(max_size=40))
def test_showing_twice_is_showing_once(text: str) -> None:
    assert visible(visible(text)) == visible(text)


def test_line_breaks_of_all_kinds_are_one_kind_and_lone_returns_are_shown() -> None:
    assert visible("a\r\nb") == "a\nb"
    assert visible("secret\rshown") == "secret␍shown"


def test_marks_piled_on_a_letter_are_cut() -> None:
    assert len(visible("a" + "\u0301" * 500)) < 10


def test_long_text_is_cut_and_says_by_how_much() -> None:
    assert visible("x" * 1_000_000, limit=10) == "x" * 10 + "… (999,990 more characters)"
    assert len(one_line("x " * 1_000_000, 80)) < 140


def test_a_call_in_one_line_has_no_line_breaks_and_nothing_hidden() -> None:
    line = summary("pay", {"to": "a\nb\u202ec", "n": 0, "none": None})
    assert "\n" not in line
    assert "\u202e" not in line
    assert "n=0" in line
    assert summary("now", None) == "now()"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=8), lambda v: st.lists(v) | st.dictionaries(st.text(max_size=4), v)
    )
)
def test_json_stays_the_same_json(value: Any) -> None:
    assert json.loads(show_json(value)) == value


def test_look_alike_alphabets_in_one_word_are_found() -> None:
    assert mixed_scripts("p\u0430ypal.com")
    assert mixed_scripts("write to b\u03bfb")
    for honest in ("paypal", "привет мир", "hello мир", "日本 tokyo", "x1", ""):
        assert not mixed_scripts(honest)


def test_a_call_with_one_value_or_long_ones_is_told_briefly() -> None:
    assert summary("add", [1, {"a": None}]) == 'add([1,{"a":null}])'
    assert summary("say", "hi\nthere") == r"say('hi\nthere')"
    assert summary("say", {"text": "x" * 61, "to": [0] * 40}, 400) == f"say(text='{'x' * 60}'…, to=[{'0,' * 29}0…)"
    assert summary("say", {"no": False}, 8) == "say(no=f… (5 more characters)"


def test_hidden_characters_beyond_the_basic_plane_are_escaped_as_json_does() -> None:
    assert show_json("a\U000e0041\u202eb") == r'"a\udb40\udc41\u202eb"'
    assert show_json({"k": "é"}) == '{\n  "k": "é"\n}'
    assert show_json([0] * 3, limit=5) == "[\n  0… (12 more characters)"

"""The two forms of an item's page, as they stand: the answer, and the input to be edited. Each is a form out of a schema,
plain words or JSON, can be switched from one to the other, and keeps what was typed, fit or not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.forms import (
    Field,
    check,
    fill,
    form_of,
    is_too_large,
    read_form,
    read_json,
    row_count,
    with_row,
    within_bounds,
    without_row,
)
from adjourn.store import InterruptRecord

Mode = Literal["form", "text", "json", "none"]
Form = Mapping[str, Sequence[str]]
_SWITCH: Mapping[str, str] = {"form": "Use the form", "text": "Write plain words", "json": "Write JSON instead"}


class FormState(msgspec.Struct, frozen=True):
    """A form as it is shown. `data` are its inputs by name, `text` is what stands in its one text field; `initial` is what
    it was filled with: what it has no field for stays as it is there. `began` is that as JSON, for the form to carry, where it
    was filled with something else than at first.
    """

    mode: Mode
    modes: tuple[Mode, ...]
    schema: Any = None
    field: Field | None = None
    data: Form = {}
    text: str = ""
    initial: Any | UnsetType = UNSET
    began: str = ""

    def places(self, prefix: str) -> dict[str, tuple[str, str]]:
        """Where each path is typed; nothing where it is not a form."""
        return places(self.field, self.data, prefix) if self.mode == "form" and self.field is not None else {}

    @property
    def others(self) -> list[tuple[str, str]]:
        """The ways it could be shown instead, with the words on their buttons."""
        return [(m, _SWITCH[m]) for m in self.modes if m != self.mode]


def places(field: Field, data: Form, prefix: str) -> dict[str, tuple[str, str]]:
    """Where the value of each path is typed: the id of its input and the titles that lead to it. `prefix` begins the ids."""
    out: dict[str, tuple[str, str]] = {}
    for path, named, titles in _places(field, data, "$", "$", ()):
        out.setdefault(path, (prefix + quote(named), " \u203a ".join(titles) or field.title or "Answer"))
    return out


def _places(
    field: Field, data: Form, path: str, named: str, titles: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    yield path, named, titles
    for child in field.children:
        yield from _places(child, data, f"{path}.{child.name}", f"{named}.{child.name}", (*titles, child.title))
    if field.item is not None:
        *outer, last = titles or (field.title or "Row",)
        for i in range(row_count(data, named)):
            yield from _places(field.item, data, f"{path}[{i}]", f"{named}[{i}]", (*outer, f"{last} {i + 1}"))
    chosen = _first(data, named + "@")
    if field.kind == "union" and chosen in map(str, range(len(field.options))):
        yield from _places(field.options[int(chosen)], data, path, f"{named}@{chosen}", titles)


class Typed(msgspec.Struct, frozen=True):
    """What came out of a form that was sent: the value, or UNSET with the errors by path. `state` shows it again as it was.

    `again`: a button was pressed that only changes the form.
    """

    state: FormState
    value: Any | UnsetType
    errors: Mapping[str, str]
    again: bool = False


def answer_form(row: InterruptRecord) -> FormState:
    """The form for a response, empty."""
    if row.response is None:
        return FormState("text", ("text", "json"))
    field = form_of(row.response)
    if field is None:
        return FormState("json", ("json",), row.response)
    data = fill(field)
    if is_too_large(field, data):
        return FormState("json", ("json",), row.response)
    return FormState("form", ("form", "json"), row.response, field, data)


def edit_form(row: InterruptRecord, schema: Any) -> FormState:
    """The form for the input, filled with what was shown. Without a schema there is nothing to check an edit with."""
    if schema is None:
        return FormState("none", ())
    field = form_of(schema)
    data = fill(field, row.input) if field is not None and field.kind == "object" else None
    if field is None or data is None or is_too_large(field, data):
        return FormState("json", ("json",), schema, None, {}, _text(row.input), row.input)
    return FormState("form", ("form", "json"), schema, field, data, "", row.input)


def filled(state: FormState, value: Any) -> FormState:
    """The same form, with this value in it."""
    if state.mode == "form":
        shown = _as_form(state, value)
        if shown is not None:
            return shown
        state = msgspec.structs.replace(state, mode="json")
    return msgspec.structs.replace(state, text=_text(value))


def _as_form(state: FormState, value: Any) -> FormState | None:
    """The form filled with this value; None where that is too much for a form."""
    assert state.field is not None
    data = fill(state.field, value)
    if is_too_large(state.field, data):
        return None
    return msgspec.structs.replace(state, mode="form", data=data, initial=value, began=json.dumps(value))


def read(state: FormState, sent: Form) -> Typed:
    """What was sent for this form."""
    mode = _first(sent, "_as")
    state = msgspec.structs.replace(state, mode=mode if mode in state.modes else state.mode)
    if state.mode == "none":
        return Typed(state, state.initial, {})
    if state.mode == "form":
        state = _begun(state, _first(sent, "_began"))
        state = msgspec.structs.replace(state, data={k: v for k, v in sent.items() if k.startswith("$")})
    else:
        state = msgspec.structs.replace(state, text=_first(sent, f"_{state.mode}"))
    if state.mode == "form" and state.field is not None and ("_add" in sent or "_remove" in sent):
        return _with_rows_changed(state, state.field, sent)
    value, errors = _value(state)
    if state.mode == "form" and state.field is not None:
        # What was sent has been read, and is refused where it is too much to be shown again.
        state = msgspec.structs.replace(state, data=within_bounds(state.field, state.data))
    wanted = _first(sent, "_switch")
    if wanted in state.modes and wanted != state.mode:
        return _switched(state, wanted, value, errors)
    return Typed(state, UNSET if errors else value, errors)


def _value(state: FormState) -> tuple[Any, Mapping[str, str]]:
    """The value, as far as it can be read, and the errors."""
    if state.mode == "text":
        return state.text.replace("\r\n", "\n"), {}
    if state.mode == "form" and state.field is not None:
        reading = read_form(state.field, state.data, state.initial)
        return reading.value, reading.errors
    try:
        value = read_json(state.text)
    except ValueError as e:
        return UNSET, {"$": str(e)}
    return value, check(state.schema, value) if state.schema is not None else {}


def _switched(state: FormState, wanted: str, value: Any, errors: Mapping[str, str]) -> Typed:
    if wanted == "json":
        text = _text(value) if value is not UNSET else ""
        return Typed(msgspec.structs.replace(state, mode="json", text=text), UNSET, {}, True)
    if value is UNSET:
        return Typed(state, UNSET, errors, True)  # it cannot be shown otherwise before it is JSON
    if wanted == "text":
        return Typed(
            msgspec.structs.replace(state, mode="text", text=value if isinstance(value, str) else _text(value)),
            UNSET,
            {},
            True,
        )
    shown = _as_form(state, value)
    if shown is None:
        return Typed(state, UNSET, {"$": "has more rows or fields in its lists than a form can show"}, True)
    return Typed(shown, UNSET, {}, True)


def _begun(state: FormState, began: str) -> FormState:
    """The form with the value that it carries as what it was filled with."""
    try:
        return msgspec.structs.replace(state, initial=read_json(began), began=began) if began else state
    except ValueError:
        return state  # damaged on its way; what was typed is still there


def _with_rows_changed(state: FormState, field: Field, sent: Form) -> Typed:
    changed = within_bounds(field, state.data)
    errors: dict[str, str] = {}
    if "_remove" in sent:
        changed = without_row(changed, _first(sent, "_remove"))
    if "_add" in sent:
        more = with_row(field, changed, _first(sent, "_add"))
        if more == changed:
            errors["$"] = "has as many rows as a form can show; write JSON to give more"
        changed = more
    return Typed(msgspec.structs.replace(state, data=changed), UNSET, errors, True)


def read_note(text: str) -> Any:
    """The metadata of a restart: JSON where it is an object or list, else the words as {"note": …}; None for nothing."""
    if not text.strip():
        return None
    if text.lstrip()[:1] in ("{", "["):
        return read_json(text)
    return {"note": text.replace("\r\n", "\n").strip()}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _first(sent: Form, name: str) -> str:
    return (sent.get(name) or [""])[0]

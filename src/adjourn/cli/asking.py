"""Forms at a terminal: one question a field of the response schema, checked as it is typed."""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType

from adjourn.cli.picks import Option, ask, confirm, edit, pick
from adjourn.cli.screen import Screen
from adjourn.display import one_line, show_json, visible
from adjourn.fields import Field
from adjourn.forms import check, form_of, read_json, read_text

_LATER = object()


async def ask_value(screen: Screen, schema: Any, *, what: str = "Response") -> Any:
    """A value that fits the schema, asked for field by field; as JSON where no form can do it."""
    form = form_of(schema) if schema is not None else None
    if form is None:
        return await _ask_free(schema, what)
    while True:
        value = await _field(screen, form, what)
        problems = check(schema, None if value is UNSET else value)
        if not problems:
            return None if value is UNSET else value
        for path, message in problems.items():
            screen.say(f"  {one_line(path)}: {one_line(message, 400)}", style="red")
        screen.say("  Once more, please.", style="dim")


async def ask_json(text: str, schema: Any, what: str) -> Any:
    """JSON, edited until it fits."""
    return await edit(text, checked(schema), what)


def checked(schema: Any) -> Callable[[str], Any]:
    """Reads JSON that fits the schema. Raises ValueError with what is wrong."""

    def read(text: str) -> Any:
        value = read_json(text)
        problems = check(schema, value) if schema is not None else {}
        if problems:
            raise ValueError("; ".join(f"{path} {message}" for path, message in problems.items()))
        return value

    return read


async def _ask_free(schema: Any, what: str) -> Any:
    if schema is not None:
        return await ask(f"{what}, as JSON:", checked(schema), multiline=True)
    return await ask(f"{what}:", json_or_text, multiline=True, hint="JSON, or plain text. Alt+Enter: new line")


def json_or_text(text: str) -> Any:
    """What was typed as JSON where it is JSON, else as the text that it is."""
    try:
        return read_json(text)
    except ValueError:
        return text


def _title(field: Field, outer: str) -> str:
    return one_line(field.title or field.name or outer, 80)


async def _field(screen: Screen, field: Field, outer: str) -> Any | UnsetType:
    title = _title(field, outer)
    if field.kind in ("object", "list", "union", "many") and field.optional and not await confirm(f"Give {title}?"):
        return UNSET if not field.required else None
    if field.kind == "object":
        return await _object(screen, field, title)
    if field.kind == "list":
        return await _list(screen, field, title)
    if field.kind == "union":
        options = [Option(o, one_line(o.title, 80)) for o in field.options]
        return await _field(screen, await pick(f"{title}: which kind?", options), title)
    if field.kind == "many":
        return [c.value for c in field.choices if await confirm(f"{title}: {one_line(c.label, 80)}?")]
    if field.kind == "constant":
        return field.choices[0].value
    if field.kind in ("choice", "boolean"):
        return await _choice(field, title)
    default = read_default(field)
    notes = [field.description, field.hint, "" if not field.optional else "may be left empty"]
    hint = "; ".join(n for n in notes if n)
    return await ask(
        f"{title}:", lambda text: read_text(field, text), default=default, hint=hint, multiline=field.kind == "text"
    )


async def _object(screen: Screen, field: Field, title: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if field.description:
        screen.quote(field.description, style="dim")
    for child in field.children:
        value = await _field(screen, child, title)
        if value is not UNSET:
            out[child.name] = value
    return out


async def _list(screen: Screen, field: Field, title: str) -> list[Any]:
    out: list[Any] = []
    assert field.item is not None
    while await confirm(f"{title}: add {'one more' if out else 'one'}? ({len(out)} so far)", default=not out):
        value = await _field(screen, field.item, f"{title} {len(out) + 1}")
        out.append(None if value is UNSET else value)
    return out


async def _choice(field: Field, title: str) -> Any | UnsetType:
    options: list[Option[Any]]
    if field.kind == "boolean":
        options = [Option(True, "Yes", key="y"), Option(False, "No", key="n")]
    else:
        options = [Option(c.value, one_line(c.label, 80)) for c in field.choices]
    if field.optional:
        options.append(Option(_LATER, "(leave it out)"))
    at = next((i for i, o in enumerate(options) if field.default is not UNSET and o.value == field.default), 0)
    question = f"{title}? {one_line(field.description, 80)}" if field.description else f"{title}?"
    value = await pick(question, options, at=at)
    if value is _LATER:
        return UNSET if not field.required else None
    return value


def read_default(field: Field) -> str:
    """The default as it would be typed; none where it holds what a terminal should not get."""
    if field.default is UNSET or field.default is None:
        return ""
    text = field.default if isinstance(field.default, str) else show_json(field.default)
    return text if visible(text) == text else ""

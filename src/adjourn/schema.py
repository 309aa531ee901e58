"""From Python types to JSON schema, and from JSON to validated Python values. The only home of pydantic in the core.

pydantic is imported when the first type is described, not with `adjourn`.
"""

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast

from adjourn.docstring import read_docstring
from adjourn.errors import SignatureError
from adjourn.parts import fresh, named

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Schema = Mapping[str, Any]
_DATA = ("default", "const", "enum", "examples")  # keywords that hold data, not schemas


class Misfit(ValueError):
    """A value does not fit a type. `problems` has a `path` (as in `$.lines[0].sku`) and a `message` for each fault."""

    def __init__(self, problems: Sequence[Mapping[str, str]]) -> None:
        super().__init__("; ".join(f"{p['path']}: {p['message']}" for p in problems))
        self.problems = list(problems)


class TypeShape:
    """A type as JSON schema, with its validation."""

    def __init__(self, kind: Any) -> None:
        self._adapter = _adapter(kind)
        self.schema: Schema = _json_schema(self._adapter, f"the type {_shown(kind)}")

    def validate(self, value: Any) -> Any:
        """`value` (JSON data) as the Python type. Raises Misfit."""
        return _validate(self._adapter, value)

    def parse(self, text: str) -> Any:
        """The type's value out of a model's text, which may stand in a code fence. Raises Misfit."""
        wants_text = self.schema.get("type") == "string"
        try:
            data = json.loads(_unfenced(text), parse_constant=_no_number)
            if wants_text and not isinstance(data, str):
                return self.validate(text)
        except (ValueError, RecursionError) as e:
            if wants_text:  # plain words are a text, too
                return self.validate(text)
            raise Misfit([{"path": "$", "message": f"is not JSON: {e}"}]) from None
        return self.validate(data)


class InputShape:
    """What a function takes, as one JSON object, and how such an object becomes its arguments.

    A function with exactly one required parameter that is a model, dataclass or TypedDict takes that object itself; any
    other takes an object with a property a parameter.
    """

    def __init__(self, fn: Callable[..., Any], context_type: type) -> None:
        self.name = getattr(fn, "__name__", "tool")
        self.description, texts = read_docstring(fn)
        hints = _hints(fn, self.name)
        self.returns: Any = hints.get("return", inspect.Signature.empty)
        self.context_name: str | None = None
        self._positional: list[str] = []
        self._names: list[str] = []
        given: dict[str, tuple[Any, inspect.Parameter]] = {}
        for parameter in inspect.signature(fn).parameters.values():
            hint = hints.get(parameter.name, Any)
            if parameter.name == "ctx" and parameter.annotation is parameter.default is parameter.empty:
                raise SignatureError(
                    f"tool {self.name!r}: ctx has no annotation, so the model would have to supply it; write "
                    f"ctx: {context_type.__name__}"
                )
            if _is_context(hint, context_type):
                self.context_name = parameter.name
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    self._positional.append(parameter.name)
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise SignatureError(
                    f"tool {self.name!r}: a model cannot be told about {parameter}; "
                    "name each parameter, or take one list or dict"
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                self._positional.append(parameter.name)
            given[parameter.name] = (hint, parameter)
            self._names.append(parameter.name)
        self._whole = False
        self.schema: Schema = {}
        self._known: frozenset[str] | None = None
        only = next(iter(given.values())) if len(given) == 1 else None
        if only is not None and only[1].default is inspect.Parameter.empty and _is_object(only[0]):
            self._take_whole(only[0])
        if not self._whole:
            self._adapter, self.schema = _of_parameters(self.name, given, texts)

    def _take_whole(self, hint: Any) -> None:
        where = f"tool {self.name!r}, parameter {self._names[0]!r}"
        adapter = _adapter(hint, where)
        schema = _at_the_top(_json_schema(adapter, where))
        if schema.get("type") != "object":
            return  # a root model of something else is a parameter like any other
        self._whole, self._adapter, self.schema = True, adapter, schema
        if _config(hint).get("extra") is None:
            # What it does not know, a model made up: it should hear of that.
            self._known = frozenset([*schema.get("properties", ()), *getattr(_bare(hint), "model_fields", ())])
            self.schema = {**schema, "additionalProperties": False}

    def arguments(self, value: Any, context: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments for this input. Raises Misfit where it does not fit the schema."""
        checked = self.validate(fresh(value))
        if self._whole:
            named = {self._names[0]: checked}
        else:
            named = {name: getattr(checked, f"a{i}") for i, name in enumerate(self._names)}
        if self.context_name is not None:
            named[self.context_name] = context
        return [named.pop(name) for name in self._positional], named

    def validated(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """These arguments as a predicate gets them: the one object itself, or a dict by parameter name."""
        named = {**dict(zip(self._positional, args, strict=True)), **kwargs}
        if self.context_name is not None:
            named.pop(self.context_name, None)
        return named[self._names[0]] if self._whole else named

    def validate(self, value: Any) -> Any:
        """The checked value. A string that holds JSON is read first: some models send their arguments so."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as e:
                raise Misfit([{"path": "$", "message": f"the arguments are broken or cut off: {e}"}]) from None
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise Misfit([{"path": "$", "message": "the arguments must be one JSON object"}])
        given = cast(Mapping[str, Any], value)
        if self._known is not None and (extra := [k for k in given if k not in self._known]):
            raise Misfit([{"path": f"$.{k}", "message": "there is no such argument"} for k in extra])
        return _validate(self._adapter, given)

    def output_schema(self) -> Schema | None:
        """The schema of the declared return type; None where there is none that can be described."""
        if self.returns in (inspect.Signature.empty, Any, None, type(None)):
            return None
        try:
            return TypeShape(self.returns).schema
        except SignatureError:
            return None  # a return type is a hint to readers; it need not be JSON (ToolOutput, say)


def _hints(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    target: Any = inspect.unwrap(fn)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(cast(Any, target).func)
    if not hasattr(target, "__code__") and not inspect.isclass(target):
        target = getattr(target, "__call__", target)  # noqa: B004 - an object with __call__
    try:
        return typing.get_type_hints(target, localns=_enclosing(target) or None, include_extras=True)
    except (NameError, TypeError) as e:
        raise SignatureError(f"tool {name!r}: an annotation cannot be resolved: {e}") from e


def _enclosing(target: Any) -> dict[str, Any]:
    """The variables of the functions around it that it mentions, as far as they have a value yet."""
    names = target.__code__.co_freevars if hasattr(target, "__code__") else ()
    found: dict[str, Any] = {}
    for name, cell in zip(names, getattr(target, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is defined below the function that mentions it
            continue
    return found


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _is_context(hint: Any, context_type: type) -> bool:
    plain = _bare(hint)
    if typing.get_origin(plain) in (typing.Union, types.UnionType):
        return context_type in [_bare(a) for a in typing.get_args(plain)]
    return plain is context_type


def _is_object(hint: Any) -> bool:
    from typing_extensions import is_typeddict  # comes with pydantic, and knows both kinds

    plain = _bare(hint)
    known = is_dataclass(plain) or is_typeddict(plain) or hasattr(plain, "model_json_schema")
    return inspect.isclass(plain) and known


def _config(hint: Any) -> Mapping[str, Any]:
    plain = _bare(hint)
    return getattr(plain, "model_config", None) or getattr(plain, "__pydantic_config__", None) or {}


def _at_the_top(schema: Schema) -> Schema:
    """The schema without a reference at its head, which models do not follow (recursive types have one)."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    target = schema.get("$defs", {}).get(name)
    if target is None:
        return schema
    return {**{k: v for k, v in schema.items() if k != "$ref"}, **target}


def _adapter(kind: Any, where: str = "") -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(kind)
    except _undescribed() as e:
        subject = f"{where}: {_shown(kind)}" if where else f"the type {_shown(kind)}"
        raise SignatureError(f"{subject} cannot be described as JSON: {_why(kind, e)}") from e


def _shown(kind: Any) -> str:
    return kind.__qualname__ if inspect.isclass(kind) and not typing.get_args(kind) else repr(kind)


def _why(kind: Any, error: Exception) -> str:
    """What pydantic says. It does not say which class it means where a TypedDict is of the wrong module."""
    if getattr(error, "code", None) == "typed-dict-version":  # pragma: no cover - before Python 3.12
        old = _old_typed_dict(kind, [])
        if old is not None:
            return (
                f"{old.__qualname__} is a TypedDict of typing, which can be checked from Python 3.12 on. Define it with the "
                "other one: from typing_extensions import TypedDict"
            )
    return _first_line(error)


def _old_typed_dict(kind: Any, seen: list[Any]) -> Any:  # pragma: no cover - before Python 3.12
    """The first TypedDict of `typing` in this type, however deep; None where there is none."""
    if any(kind is k for k in seen):
        return None
    seen.append(kind)
    if typing.is_typeddict(kind) and type(kind).__module__ == "typing":
        return kind
    inner = list(typing.get_args(kind))
    if inspect.isclass(kind):
        try:
            inner += typing.get_type_hints(kind).values()
        except (NameError, TypeError):  # a field that cannot be looked into is not the one to name
            pass
    return next((found for k in inner if (found := _old_typed_dict(k, seen)) is not None), None)


def _of_parameters(
    name: str, given: Mapping[str, tuple[Any, inspect.Parameter]], texts: Mapping[str, str]
) -> tuple["TypeAdapter[Any]", Schema]:
    from pydantic import ConfigDict, Field, TypeAdapter, create_model

    fields: dict[str, Any] = {}
    for i, (parameter_name, (hint, parameter)) in enumerate(given.items()):
        default: Any = ... if parameter.default is parameter.empty else parameter.default
        # Fields have names of our own, so that a parameter may be called `schema`, `copy` or `_x`.
        about = texts.get(parameter_name)
        extra: Any = Field(alias=parameter_name, description=about) if about else Field(alias=parameter_name)
        fields[f"a{i}"] = (typing.Annotated[hint, extra], default)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid", validate_default=False), **fields)
        adapter = TypeAdapter(model)
        return adapter, _json_schema(adapter, f"tool {name!r}")
    except (SignatureError, *_undescribed()) as e:
        tried = [_problem(hint, f"tool {name!r}, parameter {n!r}") for n, (hint, _) in given.items()]
        to_blame = [p for p in tried if p is not None]
        raise (to_blame or [SignatureError(f"tool {name!r} cannot be described as JSON: {_first_line(e)}")])[0] from e


def _problem(hint: Any, where: str) -> SignatureError | None:
    try:
        _json_schema(_adapter(hint, where), where)
    except SignatureError as e:
        return e
    return None


def _undescribed() -> tuple[type[Exception], ...]:
    from pydantic.errors import PydanticUserError

    return (PydanticUserError, TypeError)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _json_schema(adapter: "TypeAdapter[Any]", where: str) -> Schema:
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

    class Quiet(GenerateJsonSchema):
        # A default with no JSON form is still a default; it just cannot be shown.
        ignored_warning_kinds: "set[JsonSchemaWarningKind]" = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the base class has it

    try:
        return _untitled(adapter.json_schema(schema_generator=Quiet))
    except (PydanticInvalidForJsonSchema, PydanticUserError) as e:
        raise SignatureError(f"{where}: it has no JSON schema: {_first_line(e)}") from e


def _untitled(schema: Any, names: bool = False) -> Any:
    """Without pydantic's made-up titles, which cost every model tokens. `names`: the keys here are properties' names."""
    if isinstance(schema, dict):
        items = cast(dict[str, Any], schema).items()
        return {
            k: v if not names and k in _DATA else _untitled(v, not names and k in ("properties", "$defs"))
            for k, v in items
            if names or k != "title"
        }
    if isinstance(schema, list):
        return [_untitled(v) for v in cast(list[Any], schema)]
    return schema


def _validate(adapter: "TypeAdapter[Any]", value: Any) -> Any:
    try:
        # The adapter's own method, and an import up here, would each cost more than the validation.
        return adapter.validator.validate_python(value)
    except Exception as e:
        from pydantic import ValidationError

        if isinstance(e, ValidationError):
            raise Misfit(_problems(e)) from None
        raise Misfit([{"path": "$", "message": f"cannot be checked: {named(e)}"}]) from e


def _problems(error: "ValidationError") -> list[Mapping[str, str]]:
    out: list[Mapping[str, str]] = []
    for fault in error.errors(include_url=False, include_context=False):
        path = "$" + "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in fault["loc"])
        message = fault["msg"]
        if fault["type"] == "extra_forbidden":
            message = "there is no such argument"
        elif fault["type"] != "missing" and not isinstance(fault["input"], (dict, list)):
            shown = repr(fault["input"])
            message = f"{message}, not {shown if len(shown) <= 80 else shown[:80] + '…'}"
        out.append({"path": path, "message": message})
    return out


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _unfenced(text: str) -> str:
    text = text.strip()
    if text.startswith("```"):
        text = text.split("\n", 1)[-1]
        text = text.rsplit("```", 1)[0]
    return text

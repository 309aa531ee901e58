"""What providers' dialects have in common: schemas with their references written out, keywords dropped, tool names mapped,
settings read.

What a dialect cannot express is told when a tool or an output is defined, by an error that names it, the place in it, the
provider, and what to do (`Subject.refused`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from adjourn.errors import SignatureError
from adjourn.parts import convert, digest

T = TypeVar("T")
Schema = Mapping[str, Any]
Path = tuple[str, ...]
"""Where in a schema: names of properties, "[]" for what a list holds, "{}" for the values of a dict."""


@dataclass(frozen=True)
class Subject:
    """What a schema is of (`tool 'buy'`, `output=`), and who is to understand it."""

    what: str
    provider: str

    def refused(self, path: Path, problem: str, advice: str) -> SignatureError:
        """The error for what the provider cannot express."""
        return SignatureError(f"{self.what}{_place(path)}: {self.provider} cannot express {problem}. {advice}")


def _place(path: Path) -> str:
    shown = "".join([p if p in ("[]", "{}") else f".{p}" for p in path]).removeprefix(".")
    return f", at {shown!r}" if shown else ""


def read_settings(given: Any, kind: type[T], others: Mapping[str, str] | None = None) -> T:
    """The settings as this kind of struct, from one or from a dict with its names in snake or camel case.

    `others` maps names that other providers have for a setting to its own, so that one dict serves several. Raises
    InvalidRequest, naming the field, for what is none.
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        plain = {_snake(str(k)): v for k, v in cast(Mapping[Any, Any], given).items()}
        renamed = {ours: plain.pop(theirs) for theirs, ours in (others or {}).items() if theirs in plain}
        given = {**renamed, **plain}
    return convert({} if given is None else given, kind)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m[1].lower(), name)


def inline_references(schema: Schema, subject: Subject) -> dict[str, Any]:
    """The schema with every `$ref` replaced by what it refers to.

    Raises SignatureError for a type that contains itself, which cannot be written out: keep the references for a provider
    that takes them.
    """
    definitions: Mapping[str, Any] = schema.get("$defs") or schema.get("definitions") or {}

    def expand(node: Any, inside: tuple[str, ...], path: Path) -> Any:
        if isinstance(node, list):
            return [expand(item, inside, path) for item in cast(list[Any], node)]
        if not isinstance(node, Mapping):
            return node
        given = cast(Mapping[str, Any], node)
        ref = given.get("$ref")
        rest: dict[str, Any] = {}
        for key, value in given.items():
            if key in ("$ref", "$defs", "definitions"):
                continue
            if key == "properties" and isinstance(value, Mapping):
                named = cast(Mapping[str, Any], value).items()
                rest[key] = {k: expand(v, inside, (*path, k)) for k, v in named}
            else:
                rest[key] = value if key in _DATA else expand(value, inside, (*path, *_STEPS.get(key, ())))
        if not isinstance(ref, str):
            return rest
        name = ref.rsplit("/", 1)[-1]
        if name in inside:
            raise subject.refused(
                path,
                f"the type {name!r}, which contains itself",
                "Give it a fixed depth, or make this place a text that holds JSON",
            )
        if name not in definitions:
            raise subject.refused(path, f"{ref!r}, which refers to nothing", "Put the definition under $defs")
        return {**expand(definitions[name], (*inside, name), path), **rest}

    return expand(schema, (), ())


_DATA = ("default", "const", "enum", "examples", "required")
_RULES = ("not", "contains", "propertyNames")  # schemas that are no value's own
_STEPS: Mapping[str, Path] = {
    "items": ("[]",),
    "prefixItems": ("[]",),
    "additionalProperties": ("{}",),
    "patternProperties": ("{}",),
}


def each_schema(schema: Any, change: Callable[[dict[str, Any], Path], Any], path: Path = ()) -> Any:
    """The schema with `change` made to each schema of a value in it, innermost first; defaults, enums and rules stay.

    `change` is given the schema and where it stands. A definition stands where its name says.
    """
    if isinstance(schema, list):
        return [each_schema(item, change, path) for item in cast(list[Any], schema)]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for key, value in cast(Mapping[str, Any], schema).items():
        if key in _NAMED and isinstance(value, Mapping):
            named = cast(Mapping[str, Any], value).items()
            out[key] = {k: each_schema(v, change, _below(key, k, path)) for k, v in named}
        elif key in _DATA or key in _RULES:
            out[key] = value
        else:
            out[key] = each_schema(value, change, (*path, *_STEPS.get(key, ())))
    return change(out, path)


_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


def _below(keyword: str, name: str, path: Path) -> Path:
    if keyword in ("$defs", "definitions"):
        return (name,)
    return (*path, "{}" if keyword == "patternProperties" else name)


def without(schema: Any, keywords: Sequence[str]) -> Any:
    """The schema without these keywords, wherever they stand as keywords."""
    return each_schema(schema, lambda s, _: {k: v for k, v in s.items() if k not in keywords})


class Names:
    """The names of tools as a provider takes them, and back.

    A name that it does not take becomes one that it does: the letters that fit, and a digest of the whole name. The same
    name becomes the same in every request and process, so a conversation that was stored is sent as it was before.
    """

    def __init__(self, names: Iterable[str], provider: str, fits: "re.Pattern[str]", longest: int) -> None:
        self._fits = fits
        self._longest = longest
        self._back: dict[str, str] = {}
        for name in names:
            other = self._back.setdefault(self.outward(name), name)
            if other != name:
                raise SignatureError(
                    f"tools {other!r} and {name!r} have the same name as {provider} takes names; rename one of them"
                )

    def outward(self, name: str) -> str:
        """The provider's name for it. It also maps names that are in no tool list, which a conversation may hold."""
        if len(name) <= self._longest and self._fits.fullmatch(name):
            return name
        plain = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
        if not self._fits.fullmatch(plain):
            plain = f"t_{plain}"  # some want a letter first
        return f"{plain[: self._longest - 13]}_{digest(name)[:12]}"

    def inward(self, name: str) -> str:
        """Our name for it; one that nobody was told of stays as it is."""
        return self._back.get(name, name)

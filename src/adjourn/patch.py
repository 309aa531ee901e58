"""What changed between two JSON values, as an RFC 6902 patch."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

Operation = dict[str, Any]


def difference(old: Any, new: Any, path: str = "") -> list[Operation]:
    """Operations that turn `old` into `new`; none where they are equal. Arrays are compared place by place."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _objects(cast(Mapping[str, Any], old), cast(Mapping[str, Any], new), path)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return _arrays(cast(Sequence[Any], old), cast(Sequence[Any], new), path)
    # 1 == True in Python, and they are two values in JSON.
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _objects(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Operation]:
    out: list[Operation] = [{"op": "remove", "path": f"{path}/{_escaped(k)}"} for k in old if k not in new]
    for key, value in new.items():
        here = f"{path}/{_escaped(key)}"
        if key in old:
            out += difference(old[key], value, here)
        else:
            out.append({"op": "add", "path": here, "value": value})
    return out


def _arrays(old: Sequence[Any], new: Sequence[Any], path: str) -> list[Operation]:
    out: list[Operation] = []
    for i, (a, b) in enumerate(zip(old, new, strict=False)):
        out += difference(a, b, f"{path}/{i}")
    out += [{"op": "remove", "path": f"{path}/{i}"} for i in range(len(old) - 1, len(new) - 1, -1)]
    out += [{"op": "add", "path": f"{path}/-", "value": value} for value in new[len(old) :]]
    return out


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")

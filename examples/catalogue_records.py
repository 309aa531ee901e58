"""The catalogue of the demo: a JSON file of product records, and the rules that say what is wrong with one."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
FILE = "products.json"
CODE = re.compile(r"[A-Z]{2}-[0-9]+")

Record = dict[str, Any]


class Catalogue:
    """The records of one file. Every change is on disk when the method that makes it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = json.loads(path.read_text(encoding="utf-8"))["products"]

    @classmethod
    def open(cls, folder: Path) -> tuple["Catalogue", bool]:
        """The catalogue in `folder`, and whether it had to be copied from the shipped data first."""
        path = folder / FILE
        new = not path.exists()
        if new:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(DATA / FILE, path)
        return cls(path), new

    def by_code(self, code: str) -> Record | None:
        return next((r for r in self.records if r["code"] == code), None)

    def by_id(self, id: str) -> Record | None:
        return next((r for r in self.records if r["id"] == id), None)

    def change(self, record: Record, **fields: Any) -> None:
        record.update(fields)
        self._save()

    def remove(self, record: Record) -> None:
        self.records.remove(record)
        self._save()

    def _save(self) -> None:
        lines = ",\n".join(f"    {json.dumps(r, ensure_ascii=False)}" for r in self.records)
        beside = self.path.with_suffix(".new")
        beside.write_text('{\n  "products": [\n' + lines + "\n  ]\n}\n", encoding="utf-8")
        os.replace(beside, self.path)  # never half a file


@dataclass(frozen=True)
class Fault:
    """Something wrong with a record, and the job of mending it: what to say to the model, and with which tools.

    The prompts are said one after the other in one conversation. They are short and the tools few, because the model is
    small. `about` are the codes and ids that the tools may touch in this job.
    """

    kind: str
    key: str
    title: str
    text: str
    prompts: Sequence[str]
    tools: Sequence[str]
    about: Sequence[str]


def find_faults(records: Sequence[Record]) -> list[Fault]:
    """What is wrong with these records, in their order. A record without an entry is right."""
    faults: list[Fault] = []
    first_of_name: dict[str, Record] = {}
    for record in records:
        name = record["name"].strip().casefold()
        if name in first_of_name:
            faults.append(_duplicate(first_of_name[name], record))
            continue  # it is to go, so nothing else about it matters
        first_of_name[name] = record
        faults += _faults_of(record, records)
    return faults


def _faults_of(record: Record, records: Sequence[Record]) -> list[Fault]:
    code, price = record["code"], record["price"]
    title = f"{code} {record['name'].strip()}"
    out: list[Fault] = []
    if not record["id"]:
        free = f"P-{max(int(r['id'][2:]) for r in records if r['id']) + 1}"
        prompt = f"Give the product with code {code} the record id {free}."
        out.append(Fault("id", code, title, "it has no id", [prompt], ["set_id"], [code, free]))
    if not CODE.fullmatch(code):
        key = str(record["id"])
        prompt = f"Set the code of record {key} to {code} in capital letters."
        out.append(Fault("code", key, title, "its code is not in capital letters", [prompt], ["set_code"], [key]))
    if price is None:
        prompts = [f"{code} has no price. Ask the supplier for the price.", f"Set the price of {code} to that."]
        out.append(Fault("price", code, title, "it has no price", prompts, ["ask_supplier", "set_price"], [code]))
    elif isinstance(price, str):
        prompt = f"Set the price of {code}, which is written '{price}'."
        out.append(Fault("price", code, title, f"its price is written '{price}'", [prompt], ["set_price"], [code]))
    missing = record["wanted"] - record["stock"]
    if missing > 0 and not record.get("on_order"):
        prompt = f"Order {missing} units of {code}."
        out.append(
            Fault(
                "stock",
                code,
                title,
                f"{missing} are missing in stock, and none is on order",
                [prompt],
                ["order_stock"],
                [code],
            )
        )
    return out


def _duplicate(first: Record, second: Record) -> Fault:
    keep, drop, name = first["id"], second["id"], first["name"].strip()
    return Fault(
        "duplicate",
        str(drop),
        f"{second['code']} {name}",
        f"it is there twice, as {keep} and {drop}",
        [f"{keep} and {drop} are both called {name}. Keep {keep}, drop {drop}."],
        ["merge_records"],
        [keep, drop],
    )


def compare(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """What changed, one line a record. Both must be in the file's order; a merged record is gone from `after`."""
    lines: list[str] = []
    rest = list(after)
    for old in before:
        new = next((r for r in rest if _same(old, r)), None)
        name = old["name"].strip()
        if new is None:
            lines.append(f"{old['code']} {name}: record {old['id']} is gone, merged into another")
            continue
        rest.remove(new)
        changes = [f"{k}: {_shown(old.get(k))} -> {_shown(new[k])}" for k in new if old.get(k) != new[k]]
        if changes:
            lines.append(f"{new['code']} {name}: {', '.join(changes)}")
    return lines


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old["id"] == new["id"] if old["id"] else old["code"] == new["code"]


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)

"""What the model of the catalogue demo can do: six tools over the records, and a supplier who is not always well."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field

from adjourn import Adjourn, Interrupt, ToolRunContext
from examples.catalogue_records import CODE, Catalogue, Record

ORDER_LIMIT = 500.0
"""Orders that cost more, in euros, need approval."""

PRICE_LIMIT = 0.10
"""So do prices further from the last one than this share of it."""

MOST_PER_ORDER = 300

Code: TypeAlias = Annotated[str, Field(description="product code such as RW-100")]
Id: TypeAlias = Annotated[str, Field(description="record id such as P-1001")]


class Wrong(Exception):
    """The model asked for something that cannot be. It is told so, with this name, and mends its call."""


class Offer(BaseModel):
    """What the supplier has to answer."""

    code: str
    price: float = Field(gt=0)


class SupplierDown(Exception):
    """The supplier answered 503."""


class Supplier:
    """A supplier that runs in this process: it answers 503 as often as `data` says, and then its answer."""

    def __init__(self, data: dict[str, dict[str, Any]]) -> None:
        self._data = data
        self._asked: dict[str, int] = {}

    def ask(self, code: str) -> str:
        """The answer, as it is. Raises SupplierDown."""
        self._asked[code] = self._asked.get(code, 0) + 1
        known = self._data.get(code)
        if known is None:
            return "We do not sell that."
        if self._asked[code] <= known["unavailable"]:
            raise SupplierDown(f"503 Service Unavailable (request {self._asked[code]})")
        return known["answer"]


@dataclass(frozen=True)
class Job:
    """What a turn is about, as its tools see it (`ctx.context`): they touch nothing else."""

    about: Sequence[str]


def add_tools(ai: Adjourn, catalogue: Catalogue, supplier: Supplier) -> None:
    """Defines the tools on `ai`."""

    def product(code: str, ctx: ToolRunContext) -> Record:
        return _only(code, ctx, catalogue.by_code, "product")

    def record(id: str, ctx: ToolRunContext) -> Record:
        return _only(id, ctx, catalogue.by_id, "record")

    @ai.tool(on_error="model")
    async def set_price(
        code: Code,
        price: Annotated[float, Field(gt=0, description="price in euros, such as 9.5")],
        ctx: ToolRunContext,
    ) -> dict[str, Any]:
        """Set the price of a product."""
        found = product(code, ctx)
        written, last = found["price"], found["last_price"]
        if not ctx.is_resumed():
            if isinstance(written, str) and _digits(written) and not _fits(price, written):
                raise Wrong(f"price {price:g}; '{written}' may mean {_readings(written)[-1]:g}")
            if abs(price - last) > PRICE_LIMIT * last:
                change = round(100 * (price - last) / last)
                raise Interrupt(
                    {"why": f"{price:g} is {change:+d} % from the last price, {last:g}", "written": written}
                )
        catalogue.change(found, price=price)
        return {"saved": True}

    @ai.tool(on_error="model")
    async def set_code(id: Id, code: Code, ctx: ToolRunContext) -> dict[str, Any]:
        """Set the code of a record."""
        found = record(id, ctx)
        if not CODE.fullmatch(code):
            raise Wrong(f"unknown code {code}; did you mean {code.upper()}?")
        if code.upper() != found["code"].upper():
            raise Wrong(f"code {code} is of another product; did you mean {found['code'].upper()}?")
        catalogue.change(found, code=code)
        return {"saved": True}

    @ai.tool(on_error="model")
    async def set_id(code: Code, id: Id, ctx: ToolRunContext) -> dict[str, Any]:
        """Give the product with this code a record id."""
        found = product(code, ctx)
        other = catalogue.by_id(id)
        if id not in _about(ctx) or (other is not None and other is not found):
            raise Wrong(f"id {id} is not free; did you mean {_about(ctx)[-1]}?")
        catalogue.change(found, id=id)
        return {"saved": True}

    # A record that is dropped is gone, so a person looks at each merge before it happens.
    @ai.tool(approval=True, on_error="model")
    async def merge_records(
        keep: Annotated[str, Field(description="id of the record that stays")],
        drop: Annotated[str, Field(description="id of the record that goes")],
        ctx: ToolRunContext,
    ) -> dict[str, Any]:
        """Merge two records of the same product."""
        stays, goes = record(keep, ctx), record(drop, ctx)
        if stays is goes:
            raise Wrong(f"keep and drop are both {keep}; drop must be the other record")
        catalogue.change(stays, stock=stays["stock"] + goes["stock"])
        catalogue.remove(goes)
        return {"saved": True}

    @ai.tool(on_error="model")
    async def order_stock(
        code: Code,
        quantity: Annotated[int, Field(ge=1, le=MOST_PER_ORDER, description="units to order")],
        ctx: ToolRunContext,
    ) -> dict[str, Any]:
        """Order units of a product from the supplier."""
        found = product(code, ctx)
        if not isinstance(found["price"], float | int):
            raise Wrong(f"{code} has no price yet")
        cost = quantity * found["price"]
        if cost > ORDER_LIMIT and not ctx.is_resumed():
            raise Interrupt({"why": f"{quantity} x {found['price']:g} = {cost:g} euros, over {ORDER_LIMIT:g}"})
        # The order is set, not added to: a model that repeats itself must not order twice.
        catalogue.change(found, on_order=quantity)
        return {"saved": True}

    @ai.tool(on_error="model")
    async def ask_supplier(code: Code, ctx: ToolRunContext) -> dict[str, Any]:
        """Ask the supplier for the price of a product."""
        product(code, ctx)
        try:
            answer = supplier.ask(code)
        except SupplierDown as e:
            raise Interrupt({"will_retry": True, "why": str(e)}) from None
        try:
            return Offer.model_validate_json(answer).model_dump()
        except ValueError:
            if "ask again" in answer:
                raise Interrupt({"will_retry": True, "why": answer}) from None
            raise Interrupt({"code": code, "why": "malformed data", "answer": answer}, response=Offer) from None


def repair(payload: Any) -> dict[str, Any] | None:
    """An offer out of a malformed answer, by looking for its price. None where there is none, or more than one."""
    prices = re.findall(r"price\D*?(\d+[.,]\d\d)\b", _without_escapes(str(payload["answer"])), re.IGNORECASE)
    return {"code": payload["code"], "price": float(prices[0].replace(",", "."))} if len(prices) == 1 else None


def _without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _about(ctx: ToolRunContext) -> Sequence[str]:
    job: Job = ctx.context
    return job.about


def _only(key: str, ctx: ToolRunContext, find: Callable[[str], Record | None], what: str) -> Record:
    """The record of this key, if it is one that the job is about."""
    found = find(key)
    if found is not None and key in _about(ctx):
        return found
    raise Wrong(f"there is no {what} {key} here; did you mean {_about(ctx)[0]}?")


def _digits(text: str) -> str:
    return "".join(c for c in text if c.isdigit())


def _readings(text: str) -> list[float]:
    """What a number with points and commas may mean, the likeliest last: '1.299,00' is 1299 (or, with a slip, 1.299)."""
    number = re.sub(r"[^\d.,]", "", text).strip(".,")
    whole, _, cents = number.replace(",", ".").rpartition(".")
    if not whole:
        return [float(cents)]
    plain = float(_digits(whole) + "." + cents)
    return [float(_digits(number)), plain] if len(cents) == 2 else [plain, float(_digits(number))]


def _fits(price: float, written: str) -> bool:
    return abs(price - _readings(written)[-1]) < 0.005


def load_supplier(text: str) -> Supplier:
    """The supplier that this JSON describes."""
    return Supplier(json.loads(text))

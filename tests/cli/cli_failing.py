"""The shop with a model that fails."""

from typing import Any

from shop_app import folder

from adjourn import Adjourn, ModelError
from adjourn.model import ModelRequest


def make() -> Adjourn:
    from adjourn.stores.sqlite import SQLiteStore

    ai = Adjourn(model="script")

    @ai.model("script")
    async def script(request: ModelRequest) -> Any:
        raise ModelError("no answer today", provider="script", retryable=True)

    ai.define_agent("clerk", tools=[], store=SQLiteStore(folder() / "shop.db"))
    return ai

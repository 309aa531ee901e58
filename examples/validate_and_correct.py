"""Bad data is corrected in three places: a tool's malformed result, the model's wrong input, and its final reply."""

from typing import Any

from pydantic import BaseModel, Field, ValidationError

from adjourn import Adjourn, Interrupt, run_sync
from adjourn.correction import validate
from adjourn.testing import ScriptedModel, call


class Product(BaseModel):
    sku: str = Field(pattern=r"^[A-Z]-\d+$")
    price: float


ai = Adjourn(
    model=ScriptedModel(
        [
            call("supplier_record", {"sku": 7}),  # wrong type: goes back to the model, the body does not run
            call("supplier_record", {"sku": "A-1"}),
            "A-1 costs 1250.",  # no JSON: goes back to the model
            '{"sku": "A-1", "price": 1250}',
        ]
    )
)


@ai.tool()
async def supplier_record(sku: str) -> Product:
    """Read a product from the supplier, who writes prices with commas."""
    raw = {"sku": sku.lower(), "price": "1,250.00"}
    try:
        return Product.model_validate(raw)
    except ValidationError:
        print("The supplier sent:", raw)
        raise Interrupt(raw, response=Product) from None


def mend(raw: Any) -> Any:
    return {"sku": raw["sku"].upper(), "price": raw["price"].replace(",", "")}


async def main() -> None:
    response = await ai.generate(
        "What does A-1 cost?",
        tools=[supplier_record],
        on_interrupt=validate(Product, fix=mend),
        output=Product,
    )
    for message in response.messages:
        for part in message.content:
            if part.tool_response is not None:
                print("Told the model:", part.tool_response.output)
    print("Parsed:", repr(response.output))


if __name__ == "__main__":
    run_sync(main())

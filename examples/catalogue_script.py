"""The scripted model of the catalogue demo, for machines where the real one has no engine, and for quick tests.

It says what `local/needle` said when this was written, with the same mistakes.
"""

from typing import Any

from adjourn.model import ModelRequest
from adjourn.testing import ScriptedModel, call

_REPLIES: dict[str, list[Any]] = {
    "Set the price of HL-3, which is written 'nineteen ninety-five'.": [
        call("set_price", {"code": "HL-3", "price": 19.95})
    ],
    "Set the price of CT-2, which is written '1.299,00 EUR'.": [
        call("set_price", {"code": "CT-2", "price": 1.299}),
        call("set_price", {"code": "CT-2", "price": 1299}),
    ],
    "Set the code of record P-1004 to bw-7 in capital letters.": [call("set_code", {"id": "P-1004", "code": "BW-7"})],
    "Set the price of WF-6, which is written '24,90 EUR'.": [
        call("set_price", {"code": "24,90 EUR", "price": 24.9}),
        call("set_price", {"code": "WF-6", "price": 24.9}),
    ],
    "GS-4 has no price. Ask the supplier for the price.": [call("ask_supplier", {"code": "GS-4"})],
    "Set the price of GS-4 to that.": [call("set_price", {"code": "GS-4", "price": 34.9})],
    "WB-7 has no price. Ask the supplier for the price.": [call("ask_supplier", {"code": "WB-7"})],
    "Set the price of WB-7 to that.": [call("set_price", {"code": "WB-7", "price": 9.95})],
    "MK-5 has no price. Ask the supplier for the price.": [call("ask_supplier", {"code": "MK-5"})],
    "Order 38 units of CH-8.": [call("order_stock", {"code": "CH-8", "quantity": 38})],
    "Order 500 units of RP-6.": [
        call("order_stock", {"code": "RP-6", "quantity": 500}),
        call("order_stock", {"code": "RP-6", "quantity": 300}),
    ],
    "Set the price of RW-100, which is written 'fifty-nine euros ninety'.": [
        call("set_price", {"code": "RW-100", "price": 99.0})
    ],
    "P-1006 and P-1013 are both called Tent peg. Keep P-1006, drop P-1013.": [
        call("merge_records", {"keep": "P-1006", "drop": "P-1013"})
    ],
    "Give the product with code SB-1 the record id P-1015.": [call("set_id", {"code": "SB-1", "id": "P-1015"})],
}


def scripted_model() -> ScriptedModel:
    """Answers each prompt of the demo from the list above, step by step, then says that it has nothing to add."""
    return ScriptedModel([_reply], name="scripted", repeat_last=True)


def _reply(request: ModelRequest) -> Any:
    prompt, step = "", 0
    for message in request.messages:
        if message.role == "user":
            prompt, step = message.text, 0
        elif message.role == "model":
            step += 1
    replies = _REPLIES.get(prompt, [])
    return replies[step] if step < len(replies) else "Nothing more to do."

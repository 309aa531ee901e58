"""How values travel to Temporal: as JSON that its own tools can show, encrypted on the way where a codec is given."""

from typing import Any

import msgspec
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    BinaryNullPayloadConverter,
    BinaryPlainPayloadConverter,
    CompositePayloadConverter,
    DataConverter,
    EncodingPayloadConverter,
    PayloadCodec,
)

__all__ = ["data_converter"]


class _JSON(EncodingPayloadConverter):
    @property
    def encoding(self) -> str:
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        return Payload(metadata={"encoding": b"json/plain"}, data=msgspec.json.encode(value))

    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        return msgspec.json.decode(payload.data, type=Any if type_hint is None else type_hint)


class _Payloads(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(BinaryNullPayloadConverter(), BinaryPlainPayloadConverter(), _JSON())


def data_converter(codec: PayloadCodec | None = None) -> DataConverter:
    """What clients, workers and replayers of Adjourn's workflows use."""
    return DataConverter(payload_converter_class=_Payloads, payload_codec=codec)

"""What the tests of one subject share."""

from typing import Any


def output_of(message: Any) -> Any:
    return message.content[0].tool_response.output

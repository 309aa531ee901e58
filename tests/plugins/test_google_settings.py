"""Settings, media, `output=` and addresses: what else a request to Gemini holds."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from adjourn import Adjourn, ToolOutput
from adjourn.errors import InvalidRequest
from adjourn.model import ModelRequest, ToolDefinition
from adjourn.parts import Media, Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.google_genai import GoogleConfig, VertexAI
from plugins.google_kit import FAST, Answer, FakeGemini, fcall, gemini, ignore, plain

DONE = plain({"text": "done"})
SIGNATURE = "c2lnbmVk"


class Desk:
    """An app whose model is the fake server."""

    def __init__(self, server: FakeGemini, model: str = "gemini-3-flash-preview") -> None:
        self.server = server
        self.ai = Adjourn(plugins=[gemini(server)], model=f"googleai/{model}")

        @self.ai.tool()
        async def look(name: str) -> str:
            """Look somebody up."""
            return name.upper()

        self.tools = [look]

    def bodies(self) -> list[list[Any]]:
        """The contents of each request."""
        return [s.body["contents"] for s in self.server.seen]


@pytest.fixture
async def server() -> AsyncIterator[FakeGemini]:
    async with FakeGemini([]) as server:
        yield server


def desk(server: FakeGemini, *answers: Answer, model: str = "gemini-3-flash-preview") -> Desk:
    server.answers += answers
    return Desk(server, model)


def foreign(*parts: Part) -> list[Message]:
    results = [Part(tool_response=ToolResponse(r.name, r.ref, 1)) for p in parts if (r := p.tool_request)]
    return [Message("user", [Part(text="go")]), Message("model", parts), Message("tool", results)]


async def test_pictures_files_and_data_are_sent_inline_or_by_uri(server: FakeGemini) -> None:
    d = desk(server, DONE)
    parts = [
        Part(media=Media("data:image/png;base64,aGk=")),
        Part(media=Media("gs://bucket/a.pdf", "application/pdf")),
        Part(media=Media("data:,a%20b")),
        Part(data={"n": 1}),
    ]
    await d.ai.generate(messages=[Message("user", parts)], tools=[])
    assert d.bodies()[0][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"fileData": {"fileUri": "gs://bucket/a.pdf", "mimeType": "application/pdf"}},
        {"inlineData": {"mimeType": "text/plain", "data": "YSBi"}},
        {"text": '{"n": 1}'},
    ]


@pytest.mark.parametrize("model", ["gemini-3-flash-preview", "gemini-2.5-flash"])
async def test_a_tools_pictures_are_in_its_result_or_after_it(server: FakeGemini, model: str) -> None:
    d = desk(server, plain(fcall("paint", id="f1", signature=SIGNATURE)), DONE, model=model)
    picture = Part(media=Media("data:image/png;base64,aGk="))

    @d.ai.tool()
    async def paint() -> ToolOutput:
        """Paint."""
        return ToolOutput({"ok": True}, [picture, Part(text="in oil")])

    await d.ai.generate("go", tools=[paint])
    inline = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    answered: dict[str, Any] = {"id": "f1", "name": "paint", "response": {"ok": True, "note": "in oil"}}
    results = d.bodies()[1][2:]
    if model.startswith("gemini-3"):
        assert results == [{"role": "user", "parts": [{"functionResponse": {**answered, "parts": [inline]}}]}]
    else:
        said = {"text": "What paint returned beside its result:"}
        assert results == [
            {"role": "user", "parts": [{"functionResponse": answered}]},
            {"role": "user", "parts": [said, inline]},
        ]


class City(BaseModel):
    name: str
    people: int | None = None


async def test_output_is_native_and_asked_for_in_words_where_tools_stand_in_its_way(server: FakeGemini) -> None:
    text = {"text": '{"name": "Rome"}'}
    for model, native in (("gemini-3-flash-preview", True), ("gemini-2.5-flash", False)):
        d = desk(server, plain(text), plain(text), model=model)
        reply = await d.ai.generate("go", tools=d.tools, output=City)
        assert reply.output == City(name="Rome")
        with_tools = server.seen[-1].body
        await d.ai.generate("go", tools=[], output=City)
        alone = server.seen[-1].body["generationConfig"]
        assert alone["responseMimeType"] == "application/json"
        assert alone["responseJsonSchema"]["properties"]["name"]["type"] == "string"
        if native:
            assert with_tools["generationConfig"] == alone
        else:
            assert "responseJsonSchema" not in with_tools.get("generationConfig", {})
            assert "fits this schema" in with_tools["systemInstruction"]["parts"][-1]["text"]


async def test_every_setting_arrives_and_extra_is_merged_last(server: FakeGemini) -> None:
    d = desk(server, DONE)
    config = GoogleConfig(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=99,
        stop_sequences=["X"],
        thinking_level="low",
        include_thoughts=True,
        safety_settings={"HARM_CATEGORY_HARASSMENT": "BLOCK_NONE"},
        tool_choice="any",
        allowed_tools=["look"],
        extra={"seed": 7, "tools": [{"google_search": {}}]},
    )
    await d.ai.generate("go", system="be brief", tools=d.tools, config=config)
    body = server.seen[0].body
    assert body["systemInstruction"]["parts"] == [{"text": "be brief"}]
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 99,
        "stopSequences": ["X"],
        "seed": 7,
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
    }
    assert body["safetySettings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}}
    assert sorted([list(t) for t in body["tools"]]) == [["functionDeclarations"], ["googleSearch"]]


@pytest.mark.parametrize("config", [{"top_p": 0.1, "max_tokens": 9}, {"topP": 0.1, "maxOutputTokens": 9}])
async def test_a_dict_is_a_config_in_either_case(server: FakeGemini, config: Any) -> None:
    d = desk(server, DONE)
    await d.ai.generate("go", tools=[], config=config)
    settings = server.seen[0].body["generationConfig"]
    assert settings == {"topP": 0.1, "maxOutputTokens": 9}


@pytest.mark.parametrize(
    "config,named", [({"tempratur": 1}, "tempratur"), ({"extra": {"nonsense": 1}}, "nonsense"), (5, "int")]
)
async def test_a_wrong_config_is_refused_by_name(server: FakeGemini, config: Any, named: str) -> None:
    model = gemini(server).model("gemini-3-flash-preview")
    with pytest.raises(InvalidRequest, match=named):
        await model(ModelRequest([Message("user", [Part(text="go")])], config=config), ignore)


async def test_an_altered_signature_is_refused(server: FakeGemini) -> None:
    model = gemini(server).model("gemini-3-flash-preview")
    call = Part(tool_request=ToolRequest("f", "1", {}), metadata={"google": {"thoughtSignature": "a*b"}})
    with pytest.raises(InvalidRequest, match="altered"):
        await model(ModelRequest(foreign(call)), ignore)


async def test_vertex_is_asked_at_its_own_address(server: FakeGemini) -> None:
    server.answers.append(DONE)
    plugin = VertexAI(
        "p1", "europe-west1", api_key=None, credentials=_Credentials(), base_url=server.url, http_options=FAST
    )
    definition = ToolDefinition("f", "", {"type": "object", "properties": {}})
    config = {"stream_arguments": True}
    request = ModelRequest([Message("user", [Part(text="go")])], [definition], config)
    await plugin.model("gemini-3.1-pro-preview")(request, ignore)
    (seen,) = server.seen
    where = "projects/p1/locations/europe-west1/publishers/google/models/gemini-3.1-pro-preview:generateContent"
    assert seen.path == f"/v1beta1/{where}"
    assert seen.headers["authorization"] == "Bearer made-up"
    assert seen.body["toolConfig"] == {"functionCallingConfig": {"streamFunctionCallArguments": True}}
    await plugin.aclose()


def _Credentials() -> Any:  # noqa: N802 - stands for a class that is imported late
    from google.oauth2.credentials import Credentials

    return Credentials(token="made-up")

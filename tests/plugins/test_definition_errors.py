"""What a provider's dialect cannot express is told when it is defined: the tool, the place in it, the provider, what to do."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from adjourn import Adjourn, InvalidRequest, MemoryStore, SignatureError, tool
from adjourn.model import Emit, Model, ModelReply, ModelRequest, Plugin, as_reply
from adjourn.plugins.anthropic import Anthropic, AnthropicConfig
from adjourn.plugins.google_genai import GoogleAI
from adjourn.plugins.local import Local
from adjourn.plugins.openai import ChatConfig, Dialect, OpenAI, OpenAICompatible, ResponsesConfig
from adjourn.resilience import configured_model, fallback_model, retry_model


class Endless(BaseModel):
    inner: "Endless"


class Basket(BaseModel):
    things: list[Endless]


class Cash(BaseModel):
    coins: int


class Card(BaseModel):
    number: str


class Loose(BaseModel):
    prices: dict[str, int]


def spin(basket: Basket, speed: int = 1) -> None:
    """Turns it."""


def pick(kind: Annotated[int | str, Field(json_schema_extra={"if": {"type": "integer"}})]) -> None: ...


def paying() -> Any:
    """A tool whose input is one of two objects."""
    made = tool(spin)
    made.shape.schema = {"anyOf": [Cash.model_json_schema(), Card.model_json_schema()]}
    return made


PLUGINS: dict[str, Plugin] = {
    "googleai": GoogleAI(api_key="none"),
    "openai": OpenAI("none"),
    "chat": OpenAI("none", api="chat"),
    "ollama": OpenAICompatible("ollama", "http://127.0.0.1:1/v1"),
    "anthropic": Anthropic(api_key="none"),
    "local": Local(),
}
NAMES = {
    "googleai": "googleai/gemini-3-flash-preview",
    "openai": "openai/gpt-5",
    "chat": "openai/gpt-5",
    "ollama": "ollama/m",
    "anthropic": "anthropic/claude-sonnet-5",
    "needle": "local/needle",
    "smollm2": "local/smollm2",
}


def app(name: str) -> Adjourn:
    plugin = PLUGINS["local" if name in ("needle", "smollm2") else name]
    return Adjourn(plugins=[plugin], model=NAMES[name])


@pytest.mark.parametrize(
    "name, provider, advice",
    [
        ("googleai", "Gemini", "Give that property a default"),
        ("needle", "local/needle", "Give it a fixed depth"),
        ("smollm2", "local/smollm2", "Give it a fixed depth"),
    ],
)
async def test_a_tool_whose_type_contains_itself_is_refused_when_the_agent_is_defined(
    name: str, provider: str, advice: str
) -> None:
    ai = app(name)
    with pytest.raises(SignatureError) as refused:
        ai.define_agent("a", tools=[tool(spin)])
    told = str(refused.value)
    assert told.startswith(f"tool 'spin', at 'basket.things[].inner': {provider} cannot express the type 'Endless'")
    assert advice in told
    # generate says the same, before anything is sent (there is nobody to send to).
    with pytest.raises(SignatureError, match="tool 'spin'"):
        await ai.generate("go", tools=[tool(spin)])
    with pytest.raises(SignatureError, match="tool 'spin'"):
        ai.generate_stream("go", tools=[tool(spin)])


@pytest.mark.parametrize("name", ["openai", "chat", "ollama", "anthropic"])
def test_who_takes_such_a_type_is_not_refused(name: str) -> None:
    app(name).define_agent("a", tools=[tool(spin)])


@pytest.mark.parametrize("name", ["googleai", "needle", "smollm2"])
def test_an_output_is_refused_as_early_as_a_tool(name: str) -> None:
    with pytest.raises(SignatureError, match=r"^output=, at 'things\[\]\.inner': .*'Endless'"):
        app(name).define_agent("a", tools=[], output=Basket)


@pytest.mark.parametrize("name, provider", [("openai", "openai"), ("chat", "openai"), ("anthropic", "Anthropic")])
def test_an_input_that_is_a_choice_is_refused_where_the_api_wants_one_object(name: str, provider: str) -> None:
    with pytest.raises(SignatureError, match=f"{provider} cannot express an input that is a choice .anyOf at the top"):
        app(name).define_agent("a", tools=[paying()])


def test_a_server_that_takes_choices_is_sent_them_unless_it_says_otherwise() -> None:
    app("ollama").define_agent("a", tools=[paying()])
    picky = OpenAICompatible("picky", "http://127.0.0.1:1/v1", dialect=Dialect(choices=False))
    with pytest.raises(SignatureError, match=r"^tool 'spin': picky cannot express"):
        Adjourn(plugins=[picky], model="picky/m").define_agent("a", tools=[paying()])


def test_a_keyword_that_gemini_does_not_have_is_refused_with_its_place() -> None:
    with pytest.raises(SignatureError, match="tool 'pick', at 'kind': Gemini cannot express the keyword 'if'"):
        app("googleai").define_agent("a", tools=[tool(pick)])


@pytest.mark.parametrize("name, config", [("openai", ResponsesConfig(strict=True)), ("chat", ChatConfig(strict=True))])
def test_a_strict_schema_that_cannot_be_is_refused_with_its_place(name: str, config: Any) -> None:
    with pytest.raises(
        SignatureError, match=r"^output=, at 'prices': openai cannot express .*dict.* in strict mode\. Leave `strict`"
    ):
        app(name).define_agent("a", tools=[], output=Loose, config=config)


def test_an_output_that_anthropic_cannot_enforce_is_refused_where_it_has_to() -> None:
    ai = app("anthropic")
    ai.define_agent("asked", tools=[], output=Loose)
    with pytest.raises(
        SignatureError, match=r"^output=, at 'prices': Anthropic cannot express .*dict.*structured='native'"
    ):
        ai.define_agent("enforced", tools=[], output=Loose, config=AnthropicConfig(structured="native"))


@pytest.mark.parametrize("name", list(NAMES))
def test_a_setting_that_does_not_exist_is_refused_when_the_agent_is_defined(name: str) -> None:
    with pytest.raises(InvalidRequest, match="heat"):
        app(name).define_agent("a", tools=[], config={"heat": 1})


def test_an_agent_with_every_tool_of_the_application_is_checked_when_they_are_known() -> None:
    ai = app("googleai")
    agent = ai.define_agent("a", store=MemoryStore())
    agent.connect()
    ai.tool()(spin)
    with pytest.raises(SignatureError, match="tool 'spin'"):
        agent.connect()
    with pytest.raises(SignatureError, match="tool 'spin'"):
        ai.define_agent("b")


def test_an_agent_whose_model_comes_later_is_checked_when_it_is_there() -> None:
    ai = Adjourn(model="later")
    agent = ai.define_agent("a", tools=[tool(spin)])
    ai.models.add(Refusing("later"))
    with pytest.raises(SignatureError, match="never"):
        agent.connect()


async def test_a_tool_that_comes_while_a_session_is_open_is_refused_by_its_next_turn() -> None:
    ai = app("googleai")
    session = ai.define_agent("a").connect()
    ai.tool()(spin)
    with pytest.raises(SignatureError, match="tool 'spin'"):
        await session.send("go").output


class Refusing:
    """A model that takes no tools, and counts how often it was asked."""

    def __init__(self, name: str = "refusing", refuses: bool = True) -> None:
        self.name = name
        self.refuses = refuses
        self.checked: list[ModelRequest] = []

    def check(self, request: ModelRequest) -> None:
        self.checked.append(request)
        if self.refuses:
            raise SignatureError("never")

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return as_reply("done")


async def test_a_model_is_asked_once_about_the_same_tools_output_and_config() -> None:
    model = Refusing(refuses=False)
    ai = Adjourn(model=model)
    ai.tool()(spin)
    config = {"a": 1}
    agent = ai.define_agent("a", config=config, output=Card)
    for _ in range(3):
        agent.connect()
    assert len(model.checked) == 1
    (asked,) = model.checked
    assert [t.name for t in asked.tools] == ["spin"]
    assert (asked.messages, asked.config) == ((), config)
    assert "number" in (asked.output_schema or {})["properties"]
    ai.tool()(pick)
    agent.connect()
    agent.connect()
    assert [len(r.tools) for r in model.checked] == [1, 2]
    for _ in range(3):
        assert (await ai.generate("go", tools=["spin"])).text == "done"
    assert [len(r.tools) for r in model.checked] == [1, 2, 1]


def made_of(model: Model) -> list[Model]:
    other = Refusing("other", refuses=False)
    return [
        retry_model(model),
        configured_model(model, {"b": 2}),
        fallback_model(model, other),
        fallback_model(other, model),
        retry_model(fallback_model(other, configured_model(model, None))),
    ]


@pytest.mark.parametrize("which", range(5))
def test_models_made_of_models_pass_the_question_on(which: int) -> None:
    model = made_of(Refusing())[which]
    with pytest.raises(SignatureError, match="never"):
        Adjourn(model=model).define_agent("a", tools=[tool(spin)])


def test_a_refusal_that_leads_on_to_the_next_model_is_none() -> None:
    model = fallback_model(Refusing(), Refusing("other", refuses=False), when=lambda e: isinstance(e, SignatureError))
    Adjourn(model=model).define_agent("a", tools=[tool(spin)])


def test_a_configured_model_is_asked_about_its_own_config() -> None:
    inner = Refusing(refuses=False)
    Adjourn(model=configured_model(inner, {"b": 2})).define_agent("a", tools=[], config={"a": 1})
    assert [r.config for r in inner.checked] == [{"b": 2}]

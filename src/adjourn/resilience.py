"""Models made of models: one that tries again, one that turns to another, one with settings of its own.

Each is a Model, so they nest: `fallback_model(retry_model(a), retry_model(b))`.

What was shown cannot be taken back. Once a failed attempt has emitted a chunk, whoever watches has seen the beginning of
a reply, and a second attempt would show another beginning after it. So by default an attempt that showed something is
the last, and its error is raised. With `after_chunks="mark"` there is another attempt all the same, and before it a chunk
without content whose metadata is `MARK`: what was shown of this reply no longer counts. A call that nobody watches
(`request.streaming` is false) shows nothing that matters, and is tried again in any case.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec.structs import replace

from adjourn.clock import SYSTEM, Clock
from adjourn.errors import DefinitionError, ModelError
from adjourn.model import Emit, Model, ModelReply, ModelRequest
from adjourn.observe import notify_here
from adjourn.parts import OURS, Chunk

__all__ = ["MARK", "configured_model", "fallback_model", "retry_model"]

When: TypeAlias = Callable[[Exception], bool]
AfterChunks: TypeAlias = Literal["raise", "mark"]

MARK: Mapping[str, Any] = {OURS: {"discard": True}}
"""The metadata of a chunk that says: forget what was shown of this reply, it begins anew."""


@runtime_checkable
class Growing(Protocol):
    """Delays by the number of failures, such as `adjourn.Backoff`."""

    def delay(self, failures: int) -> float: ...


Backoff: TypeAlias = "float | Growing | Callable[[int], float]"


def is_transient(error: Exception) -> bool:
    """Whether the same request may work later."""
    return isinstance(error, ModelError) and error.retryable


def is_elsewhere_possible(error: Exception) -> bool:
    """Whether another model may do it: a passing failure, or the statuses 404 (no such model) and 413 (too large).

    A wrong key or a malformed request is not covered up by default: it would stay unseen for ever.
    """
    return is_transient(error) or (isinstance(error, ModelError) and error.code in (404, 413))


def half_a_second_doubled(failures: int) -> float:
    """The default delays: 0.5 s, then twice as long each time up to 30 s, of that a random half to all."""
    return min(30.0, 0.5 * 2.0 ** min(failures - 1, 16)) * random.uniform(0.5, 1.0)


def retry_model(
    model: Model,
    *,
    attempts: int = 3,
    backoff: Backoff = half_a_second_doubled,
    budget: float | None = 60.0,
    when: When = is_transient,
    after_chunks: AfterChunks = "raise",
    clock: Clock = SYSTEM,
) -> Model:
    """The model, called up to `attempts` times where it fails.

    `when` says which errors are worth another attempt: by default a ModelError that is retryable. Before each next one
    comes the delay of `backoff` (seconds, an object with `delay(failures)`, or a function of the failures so far), or
    what the provider asked for with Retry-After, if that is longer. No attempt begins later than `budget` seconds after
    the first, and none is waited for that would; one that runs is not cut short. The last error is raised as it was.
    """
    if attempts < 1:
        raise DefinitionError(f"attempts={attempts}: give 1 or more")
    return _Retrying(model, attempts, _delays(backoff), budget, when, _checked(after_chunks), clock)


def fallback_model(
    first: Model,
    *others: Model,
    when: When = is_elsewhere_possible,
    after_chunks: AfterChunks = "raise",
    name: str | None = None,
) -> Model:
    """The first model, and where it fails the next one, and so on; the last error is raised.

    All get the same messages: calls and results stay paired, and each provider reads back only its own extras. A config
    object made for one provider means nothing to another, so it goes only to models whose name has the first one's prefix;
    a dict goes to all. To give the others theirs: `configured_model(model, config)`.
    """
    if not others:
        raise DefinitionError("fallback_model() takes at least two models")
    return _Falling((first, *others), when, _checked(after_chunks), name)


def configured_model(model: Model, config: Any) -> Model:
    """The model with this config, whatever the request has."""
    return _Configured(model, config)


def _delays(backoff: Backoff) -> Callable[[int], float]:
    if isinstance(backoff, Growing):
        return backoff.delay
    if callable(backoff):
        return backoff
    return lambda failures: backoff


def _checked(after_chunks: AfterChunks) -> AfterChunks:
    if after_chunks not in ("raise", "mark"):
        raise DefinitionError(f"after_chunks={after_chunks!r}: give 'raise' or 'mark'")
    return after_chunks


class _Attempt:
    """The chunks of one attempt: whether it showed any, and none after it is over."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.showed = False
        self.over = False

    def __call__(self, chunk: Chunk) -> None:
        if not self.over:
            self.showed = self.showed or bool(chunk.content)
            self._emit(chunk)


async def _attempt(
    model: Model, request: ModelRequest, emit: Emit, after_chunks: AfterChunks, when: When
) -> ModelReply | Exception:
    """The reply, or the error that allows another attempt; any other is raised."""
    watch = _Attempt(emit)
    try:
        return await model(request, watch)
    except Exception as e:
        shown = watch.showed and request.streaming
        if not when(e) or (shown and after_chunks == "raise"):
            raise
        if shown:
            emit(Chunk(metadata=MARK))
        return e
    finally:
        watch.over = True


def _tell_retry(model: str, attempt: int, error: Exception, delay: float) -> None:
    code = error.code if isinstance(error, ModelError) else None
    kind = type(error).__name__ if code is None else f"http_{code}"
    notify_here("retry", model, {"of": "model", "attempt": attempt, "error": kind, "delay": delay})


class _Retrying:
    def __init__(
        self,
        model: Model,
        attempts: int,
        delay: Callable[[int], float],
        budget: float | None,
        when: When,
        after_chunks: AfterChunks,
        clock: Clock,
    ) -> None:
        self._model = model
        self._attempts = attempts
        self._delay = delay
        self._budget = budget
        self._when = when
        self._after_chunks: AfterChunks = after_chunks
        self._clock = clock

    @property
    def name(self) -> str:
        return self._model.name

    def check(self, request: ModelRequest) -> None:
        _check(self._model, request)

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        begun = self._clock.monotonic()
        failures = 0

        def again(error: Exception) -> bool:
            # Asked before anything is marked as void: where no attempt follows, what was shown stays.
            nonlocal wait
            if failures + 1 >= self._attempts or not self._when(error):
                return False
            asked = error.retry_after if isinstance(error, ModelError) else None
            wait = max(self._delay(failures + 1), asked or 0.0)
            return self._budget is None or self._clock.monotonic() - begun + wait <= self._budget

        while True:
            wait = 0.0
            result = await _attempt(self._model, request, emit, self._after_chunks, again)
            if isinstance(result, ModelReply):
                return result
            failures += 1
            _tell_retry(self.name, failures, result, wait)
            await self._clock.sleep(wait)


class _Falling:
    def __init__(self, models: tuple[Model, ...], when: When, after_chunks: AfterChunks, name: str | None) -> None:
        self._models = models
        self._when = when
        self._after_chunks: AfterChunks = after_chunks
        self.name: str = name or " or ".join([m.name for m in models])

    def check(self, request: ModelRequest) -> None:
        """Each model must be able to take it, but for one whose refusal leads on to the next."""
        for model in self._models[:-1]:
            try:
                _check(model, self._for(model, request))
            except Exception as e:
                if not self._when(e):
                    raise
        _check(self._models[-1], self._for(self._models[-1], request))

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        for attempt, model in enumerate(self._models[:-1], 1):
            result = await _attempt(model, self._for(model, request), emit, self._after_chunks, self._when)
            if isinstance(result, ModelReply):
                return result
            _tell_retry(model.name, attempt, result, 0.0)
        return await self._models[-1](self._for(self._models[-1], request), emit)

    def _for(self, model: Model, request: ModelRequest) -> ModelRequest:
        config: object = request.config
        if config is None or isinstance(config, Mapping) or _provider(model) == _provider(self._models[0]):
            return request
        return replace(request, config=None)


def _check(model: Model, request: ModelRequest) -> None:
    check: Callable[[ModelRequest], None] | None = getattr(model, "check", None)
    if check is not None:
        check(request)


def _provider(model: Model) -> str:
    return model.name.partition("/")[0]


class _Configured:
    def __init__(self, model: Model, config: Any) -> None:
        self._model = model
        self._config = config

    @property
    def name(self) -> str:
        return self._model.name

    def check(self, request: ModelRequest) -> None:
        _check(self._model, replace(request, config=self._config))

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return await self._model(replace(request, config=self._config), emit)

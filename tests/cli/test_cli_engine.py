"""`--engine` of `worker` and `serve`: what is wrong with it is told before anything runs."""

import sys

import pytest

from adjourn import MemoryStore
from adjourn.cli.engine import EngineOptions, Logging
from adjourn.cli.failures import Misuse
from adjourn.errors import MissingExtra
from cli.cli_kit import APP, Shop
from cli.shop_app import build


def test_only_temporal_is_an_engine(shop: Shop) -> None:
    got = shop.run("worker", APP, "--engine", "steam")
    assert got.code == 2
    assert "temporal" in got.err


def test_the_engine_of_the_options_becomes_the_applications(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    ai = build(MemoryStore())
    assert EngineOptions().apply(ai) is False
    monkeypatch.setenv("ADJOURN_TEMPORAL_API_KEY", "k")
    assert EngineOptions(engine="temporal", address="somewhere:7233", queue="q").apply(ai) is True
    engine = ai.engine
    assert (getattr(engine, "address", ""), getattr(engine, "queue", "")) == ("somewhere:7233", "q")
    assert EngineOptions().apply(ai) is True  # it has one of its own now


def test_a_certificate_that_is_not_there_is_told(shop: Shop) -> None:
    got = shop.run("worker", APP, "--engine", "temporal", "--tls-ca", "nowhere.pem")
    assert got.code == 2
    assert "nowhere.pem" in got.err


def test_a_missing_extra_of_the_engine_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adjourn.engines.temporal", None)
    with pytest.raises(MissingExtra, match=r"adjourn\[temporal\]"):
        EngineOptions(engine="temporal").apply(build(MemoryStore()))


def test_an_engine_hands_out_its_work_so_once_is_refused(shop: Shop) -> None:
    got = shop.run("worker", APP, "--engine", "temporal", "--once")
    assert got.code == 2
    assert "--once" in got.err


def test_a_log_level_that_is_none_is_told() -> None:
    with pytest.raises(Misuse, match="--log-level"):
        Logging(log_level="loud").apply()

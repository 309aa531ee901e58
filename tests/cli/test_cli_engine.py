"""`--engine` of `worker` and `serve`: what is wrong with it is told before anything runs."""

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from adjourn import MemoryStore
from adjourn.cli.engine import EngineOptions, Logging
from adjourn.cli.failures import Misuse
from adjourn.errors import MissingExtra
from adjourn.stores.sqlite import SQLiteStore
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


def test_a_deployment_without_a_build_is_told(shop: Shop) -> None:
    got = shop.run("worker", APP, "--engine", "temporal", "--deployment", "shop")
    assert got.code == 2
    assert "--build-id" in got.err


def test_versions_of_a_worker_need_an_engine(shop: Shop) -> None:
    got = shop.run("worker", APP, "--deployment", "shop", "--build-id", "2")
    assert got.code == 2
    assert "--engine" in got.err


def test_the_version_reaches_the_worker_and_sigterm_drains_it_from_the_beginning(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def run_worker(ai: Any, *, options: Any, stop: Any) -> None:
        told.append(options)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # it said that it is ready, so it hears
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)

    async def client(engine: Any) -> None:
        """Nobody has to answer."""

    monkeypatch.setattr("adjourn.engines.temporal_worker.run_worker", run_worker)
    monkeypatch.setattr("adjourn.engines.temporal.Temporal.client", client)
    got = shop.run("worker", APP, "--engine", "temporal", "--deployment", "shop", "--build-id", "2")
    assert got.code == 0, got
    assert [(o.deployment, o.build_id) for o in told] == [("shop", "2")]


def test_the_log_of_a_session_that_an_engine_ran_says_so(shop: Shop) -> None:
    from msgspec.structs import replace

    from adjourn.records import Ran

    session = shop.say("pay 5")
    store = SQLiteStore(shop.folder / "shop.db")
    [leg] = store.submit(lambda tx: tx.snapshots(session)).result()
    ran = replace(leg, engine="temporal:default:shop", ran=(Ran(0, "7@machine"),))
    store.submit(lambda tx: tx.put_snapshot(ran)).result()
    store.close()
    got = shop("log", session, "--json")
    engine = [e for e in got.lines if e["kind"] == "engine"]
    assert engine[0]["facts"]["worker"] == "7@machine"
    assert engine[0]["facts"]["workflow"] == leg.turn_id
    assert engine[-1]["facts"]["reason"] == "this application has no engine"
    dead = shop("log", session, "--engine", "temporal", "--queue", "shop", "--address", "127.0.0.1:1", "--json")
    assert "did not answer" in [e for e in dead.lines if e["kind"] == "engine"][-1]["facts"]["reason"]
    assert "Worker 7@machine took its steps" in shop("log", session).out

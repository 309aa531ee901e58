"""`adjourn worker` and `serve` as real processes: woken by the store, sharing by leases, ended by signals."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli import shop_app
from cli.cli_kit import APP, SECONDS, Shop, read_until

Process = subprocess.Popen[str]


def wait_until(condition: Any, seconds: float = SECONDS) -> None:
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.02)


def begin(shop: Shop, started: list[Process], *arguments: str, **env: str) -> Process:
    started.append(shop.start(*arguments, **env))
    return started[-1]


def test_a_worker_is_woken_by_a_decision_made_elsewhere_and_ends_clean_on_sigterm(
    shop: Shop, started: list[Process]
) -> None:
    shop.say("pay 5")
    worker = begin(shop, started, "worker", APP, "--poll", "60")
    read_until(worker, "ready")
    assert shop("restart", shop.waiting()[0].id).code == 0
    assert "stop" in read_until(worker, "rests")
    assert shop.effects() == ["paid 5"]
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "stopped")
    assert worker.wait(SECONDS) == 0


@pytest.mark.slow
def test_a_worker_drains_before_it_ends(shop: Shop, started: list[Process]) -> None:
    shop.leave("hold")
    worker = begin(shop, started, "worker", APP, "--json", SHOP_LEASE="2")
    read_until(worker, "took up")
    wait_until(lambda: "holding" in shop.effects())
    worker.send_signal(signal.SIGTERM)
    assert json.loads(read_until(worker, "draining"))["turns"] == 1
    (shop.folder / "go").touch()
    assert json.loads(read_until(worker, "rests"))["finishReason"] == "stop"
    assert worker.wait(SECONDS) == 0


@pytest.mark.slow
def test_what_does_not_rest_in_time_goes_to_another_worker_and_nothing_runs_twice_silently(
    shop: Shop, started: list[Process]
) -> None:
    shop.leave("hold")
    worker = begin(shop, started, "worker", APP, "--grace", "0.2")
    wait_until(lambda: "holding" in shop.effects())
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "left")
    assert worker.wait(SECONDS) == 10
    other = begin(shop, started, "worker", APP, "--once", "--json")
    assert json.loads(read_until(other, "rests"))["finishReason"] == "interrupted"
    assert other.wait(SECONDS) == 0
    (waiting,) = shop.waiting()
    assert waiting.reason == "outcome_unknown"
    assert shop.effects() == ["holding"]


@pytest.mark.slow
def test_a_second_signal_ends_a_worker_at_once(shop: Shop, started: list[Process]) -> None:
    shop.leave("hold")
    worker = begin(shop, started, "worker", APP)
    wait_until(lambda: "holding" in shop.effects())
    worker.send_signal(signal.SIGINT)
    read_until(worker, "draining")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(SECONDS) == 10


@pytest.mark.slow
def test_several_workers_on_one_file_finish_every_session_once(shop: Shop, started: list[Process]) -> None:
    for n in range(12):
        shop.say(f"pay {n}")
    workers = [begin(shop, started, "worker", APP, "--concurrency", "2") for _ in range(3)]
    for worker in workers:
        read_until(worker, "ready")
    for row in shop.waiting():
        assert shop("restart", row.id).code == 0
    wait_until(lambda: len(shop.effects()) >= 12)
    wait_until(lambda: not any(i["running"] for i in shop("sessions", "--json").json["items"]))
    assert sorted(shop.effects()) == sorted(f"paid {n}" for n in range(12))
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0


@pytest.mark.postgres
@pytest.mark.slow
def test_several_workers_on_one_postgresql_share_the_work(
    shop: Shop, started: list[Process], postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uuid

    import psycopg

    schema = f"t_{uuid.uuid4().hex}"
    env = {"SHOP_DSN": postgres_dsn, "SHOP_SCHEMA": schema}
    app = "shop_app:make_postgres"
    place = f"{postgres_dsn}{'&' if '?' in postgres_dsn else '?'}schema={schema}"
    try:
        monkeypatch.setenv("SHOP_DSN", postgres_dsn)
        monkeypatch.setenv("SHOP_SCHEMA", schema)
        shop.app = shop_app.make_postgres
        for n in range(6):
            shop.say(f"pay {n}")
        workers = [begin(shop, started, "worker", app, **env) for _ in range(2)]
        for worker in workers:
            read_until(worker, "ready")
        for item in shop.run("inbox", "--store", place, "--json").json["items"]:
            assert shop.run("restart", item["id"], "--store", place).code == 0
        wait_until(lambda: len(shop.effects()) == 6)
        assert shop.run("doctor", "--store", place).code == 0
        assert sorted(shop.effects()) == sorted(f"paid {n}" for n in range(6))
    finally:
        for process in started:
            process.terminate()
            process.wait(SECONDS)
        with psycopg.connect(postgres_dsn, autocommit=True) as db:
            db.execute(f'drop schema if exists "{schema}" cascade'.encode())


def test_a_worker_needs_a_store(shop: Shop) -> None:
    got = shop.run("worker", "shop_app:make_forgetful")
    assert got.code == 2
    assert "no agent of this application has a store" in got.err


def test_a_worker_goes_on_when_one_session_cannot_be_gone_on_with(shop: Shop) -> None:
    shop.say("ask")
    shop("respond", shop.waiting()[0].id, '{"ok": true}')
    got = shop.run("worker", "cli_failing:make", "--once", "--json")
    assert got.code == 0
    ended = next(e for e in got.lines if e["event"] == "rests")
    assert (ended["finishReason"], ended["error"]["kind"]) == ("failed", "ModelError")


@pytest.mark.slow
def test_serve_shows_the_link_once_answers_and_ends_clean_on_sigterm(shop: Shop, started: list[Process]) -> None:
    import urllib.error
    import urllib.request

    shop.say("pay 5")
    server = begin(shop, started, "serve", APP, "--port", "0")
    link = read_until(server, "/signin/").strip()
    url = read_until(server, "Serving at").split()[2].rstrip(".")
    assert link.startswith(url)

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health") as reply:
                return reply.status == 200
        except urllib.error.URLError:
            return False

    wait_until(answers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/api/interrupts")
    assert refused.value.code == 401
    server.send_signal(signal.SIGTERM)
    assert server.wait(SECONDS) == 0
    assert server.stdout is not None
    assert "signin" not in server.stdout.read()


@pytest.mark.slow
def test_serve_says_where_it_cannot_listen(shop: Shop, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        got = shop.process("serve", APP, "--port", str(taken.getsockname()[1]), ADJOURN_TOKEN="x" * 40)
    assert got.code == 2
    assert "cannot listen" in got.err


@pytest.mark.slow
def test_several_server_processes_share_one_token(shop: Shop, started: list[Process]) -> None:
    import socket
    import urllib.error
    import urllib.request

    shop.say("pay 5")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = begin(shop, started, "serve", APP, "--port", str(port), "--workers", "2")
    token = read_until(server, "adj_").strip()

    def asked() -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/interrupts", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return 0

    wait_until(lambda: asked() != 0)
    assert {asked() for _ in range(6)} == {200}
    server.send_signal(signal.SIGTERM)
    assert server.wait(SECONDS) == 0

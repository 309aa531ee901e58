"""nginx with the sites of deploy/nginx, before a real server: a stream and a decision through it, and who is believed."""

import json
import queue
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.deploy_kit import DEPLOY, SECONDS, Machine, free_port, wait_until

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
SERVE = "adjourn-serve.service"
pytestmark = [
    pytest.mark.skipif(
        NGINX is None, reason="NOT CHECKED: nginx is not installed (Debian: apt-get install nginx-light)"
    ),
    pytest.mark.timeout(900),
]
_MAIN = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 128; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


class Nginx:
    """The site as it stands in deploy/, but for its ports and paths, and a certificate made here."""

    def __init__(self, machine: Machine, site: str, **ports: int) -> None:
        self.folder = machine.root / "nginx"
        self.folder.mkdir(mode=0o755)
        machine.root.chmod(0o755)  # nginx's own account works in it
        self.port = free_port()
        tls = machine.path("/etc/nginx/tls")
        self.certificate = tls / "inbox.example.org.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", "/CN=inbox.example.org", "-addext", "subjectAltName=DNS:inbox.example.org",
             "-keyout", str(tls / "inbox.example.org.key"), "-out", str(self.certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        text = machine.local((DEPLOY / "nginx" / site).read_text())
        text = text.replace("listen 443 ", f"listen 127.0.0.1:{self.port} ").replace(
            "listen 80;", f"listen 127.0.0.1:{free_port()};"
        )
        text = "\n".join(line for line in text.splitlines() if "listen [::]" not in line)
        for name, port in ports.items():
            text = text.replace(f":{name.removeprefix('p')};", f":{port};")
        (self.folder / "site.conf").write_text(text)
        (self.folder / "nginx.conf").write_text(_MAIN.format(folder=self.folder))
        assert NGINX is not None
        self.command = [NGINX, "-e", str(self.folder / "error.log"), "-c", str(self.folder / "nginx.conf")]
        self.process: subprocess.Popen[bytes] | None = None

    def check(self) -> str:
        done = subprocess.run([*self.command, "-t"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def start(self) -> "Nginx":
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until(self.answers, "nginx answers")
        return self

    def answers(self) -> bool:
        try:
            with self.client() as http:
                http.get("/health")
            return True
        except httpx.TransportError:
            return False

    def client(self, token: str = "") -> httpx.Client:
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        trusted.check_hostname = False  # it is reached by its address here
        headers = {"Host": f"inbox.example.org:{self.port}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=trusted, headers=headers, timeout=SECONDS)

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)


@pytest.fixture
def nginx(machine: Machine) -> Iterator[Nginx]:
    made = Nginx(machine, "adjourn.conf")
    yield made
    made.close()


@pytest.mark.parametrize("site", ["adjourn.conf", "adjourn-oidc.conf"])
def test_nginx_finds_nothing_wrong_with_a_site(machine: Machine, site: str) -> None:
    said = Nginx(machine, site).check()
    assert "test is successful" in said
    assert "warn" not in said


@pytest.mark.slow
def test_a_stream_and_a_decision_go_through_the_proxy_as_they_come(machine: Machine, nginx: Nginx) -> None:
    machine.begin(SERVE)
    nginx.start()
    seen: queue.Queue[tuple[str, Any]] = queue.Queue()

    def listen() -> None:
        with nginx.client(machine.token) as http, http.stream("GET", "/api/events") as stream:
            event = ""
            for line in stream.iter_lines():
                if line.startswith("retry:"):
                    seen.put(("began", stream.headers["content-type"]))
                elif line.startswith("event:"):
                    event = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    seen.put((event, json.loads(line.removeprefix("data:"))))
                    if event == "settled":
                        return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert seen.get(timeout=SECONDS)[1].startswith("text/event-stream")
    with nginx.client(machine.token) as http:
        run = http.post("/api/agents/desk/send", json={"message": "refund 40 euros for order 17"}).json()
        kind, opened = seen.get(timeout=SECONDS)
        assert (kind, opened["sessionId"]) == ("opened", run["sessionId"])
        # Whatever a client claims to be is replaced.
        forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-User": "eve"}
        got = http.post(f"/api/interrupts/{opened['interruptId']}/restart", json={}, headers=forged)
        assert got.status_code == 202
        assert seen.get(timeout=SECONDS)[0] == "settled"
        listener.join(SECONDS)
        (row,) = http.get(f"/api/interrupts/{opened['interruptId']}/history").json()["items"]
        assert (row["by"], row["address"]) == ("ann", "127.0.0.1")
        streamed = http.post(
            "/api/agents/desk/send", json={"message": "hello"}, headers={"Accept": "text/event-stream"}
        )
        assert "event: result" in streamed.text
        big = http.post("/api/agents/desk/send", content=b"x" * 2_200_000)
        assert big.status_code == 413


@pytest.mark.slow
def test_a_browser_signs_in_through_the_proxy_and_decides_with_the_form(machine: Machine, nginx: Nginx) -> None:
    machine.begin(SERVE)
    nginx.start()
    interrupt = machine.say("refund 40 euros for order 17")["interrupts"][0]["id"]
    origin = f"https://inbox.example.org:{nginx.port}"
    with nginx.client() as http:
        signed = http.post("/api/session", json={"token": machine.token}, headers={"Origin": origin})
        cookie = signed.headers["set-cookie"]
        assert "Secure" in cookie
        assert signed.headers["strict-transport-security"]
        sent = {"Cookie": cookie.split(";")[0]}
        page = http.get(f"/inbox/{interrupt}", headers=sent)
        assert page.status_code == 200
        token = http.get("/api/me", headers=sent).json()["csrfToken"]
        sent |= {"Origin": origin, "X-CSRF-Token": token}
        decide = f"/api/interrupts/{interrupt}/restart"
        other = http.post(decide, json={}, headers=sent | {"Origin": "https://elsewhere.example"})
        assert (other.status_code, other.json()["code"]) == (403, "csrf")
        assert http.post(decide, json={}, headers=sent).status_code == 202


@pytest.fixture
def signs_in() -> Iterator[ThreadingHTTPServer]:
    """What oauth2-proxy answers nginx: who has the cookie is Ann, everybody else is nobody."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = "_oauth2_proxy=ann" in self.headers.get("cookie", "")
            self.send_response(202 if known else 401)
            if known:
                self.send_header("X-Auth-Request-Email", "ann@example.org")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_proxy_that_signs_people_in_names_them_and_nobody_else_can(
    machine: Machine, signs_in: ThreadingHTTPServer
) -> None:
    nginx = Nginx(machine, "adjourn-oidc.conf", p4180=signs_in.server_port)
    more = {
        "APP_LISTEN": f"127.0.0.1:{machine.port}",
        "ADJOURN_TOKEN_FILE": str(machine.path("/etc/adjourn/tokens.toml")),
    }
    more |= {"ADJOURN_STORE": str(machine.path("/var/lib/adjourn/sessions.db"))}
    server: subprocess.Popen[bytes] = subprocess.Popen(
        [str(Path("/opt/adjourn/venv/bin/python")).replace("/opt", str(machine.path("/opt"))), "app.py"],
        cwd=machine.app, env=machine.env(more), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    machine.running["app.py"] = server
    try:
        nginx.start()
        wait_until(lambda: machine.status("/ready") == 200, "the server works")
        with nginx.client() as http:
            assert http.get("/api/me", headers={"X-Forwarded-User": "eve"}).status_code == 401
            asked = http.get("/inbox", headers={"Accept": "text/html"})
            assert asked.status_code == 302
            assert "/oauth2/start" in asked.headers["location"]
            assert http.get("/health").status_code == 200
            http.headers["Cookie"] = "_oauth2_proxy=ann"
            me = http.get("/api/me", headers={"X-Forwarded-User": "eve"}).json()
            assert (me["name"], me["role"]) == ("ann@example.org", "decide")
            http.headers.update({"X-CSRF-Token": me["csrfToken"], "Origin": f"https://inbox.example.org:{nginx.port}"})
            run = http.post("/api/agents/desk/send", json={"message": "refund 40 euros for order 17"}).json()
            decide = f"/api/interrupts/{run['interrupts'][0]['id']}"
            assert http.post(f"{decide}/restart", json={}).status_code == 202
            assert http.get(f"{decide}/history").json()["items"][0]["by"] == "ann@example.org"
    finally:
        nginx.close()

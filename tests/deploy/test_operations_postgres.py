"""The recipes of docs/operations.md that are about PostgreSQL, and several services on one."""

import importlib
import re
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from adjourn.records import InterruptQuery
from adjourn.stores.postgres import PostgresStore
from deploy.deploy_kit import Machine, Page
from deploy.test_operations import decide, effects, ended, tool_outputs, use_crew

OPERATIONS = Page("operations.md")
SERVE, ONE, TWO = "adjourn-serve.service", "adjourn-worker@1.service", "adjourn-worker@2.service"

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(900)]


def recipe(heading: str, number: int = 0) -> str:
    return OPERATIONS.block(heading, number)


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """A database of its own, as a URL."""
    import psycopg

    if "://" not in postgres_dsn:
        pytest.skip("NOT TESTED: the DSN of the test server is no URL")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute(f"create database {name}".encode())
    try:
        yield urlunsplit(urlsplit(postgres_dsn)._replace(path=f"/{name}")).replace("postgresql:/t_", "postgresql:///t_")
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as db:
            db.execute(f"drop database {name} with (force)".encode())


def on(machine: Machine, url: str) -> None:
    env = machine.path("/etc/adjourn/adjourn.env")
    # Quoted: it is read by a shell as well, and a URL may have an ampersand.
    env.write_text(re.sub(r"^ADJOURN_STORE=.*$", f"ADJOURN_STORE='{url}'", env.read_text(), flags=re.MULTILINE))


def test_an_api_and_two_workers_share_the_work_on_one_database(machine: Machine, database: str) -> None:
    use_crew(machine)
    on(machine, database)
    machine.begin(SERVE, ONE, TWO)
    sessions = [machine.say(f"pay {n}", agent="crew")["sessionId"] for n in range(8)]
    rows = [w["id"] for w in machine.waiting()]
    assert len(rows) == 8
    # The API only stores these; whoever is first goes on with them.
    for row in rows[:4]:
        machine.shell(f'adjourn restart {row} --store "$ADJOURN_STORE"')
    for row in rows[4:]:
        decide(machine, row)
    for session in sessions:
        ended(machine, session)
    assert sorted(effects(machine)) == [f"pay {n}" for n in range(8)]
    assert '"took up"' in machine.log(ONE) + machine.log(TWO)
    for name in (ONE, TWO, SERVE):
        machine.stop(name)
    assert machine.codes == {SERVE: 0, ONE: 0, TWO: 0}


def test_a_database_is_dumped_while_in_use_and_restored_with_what_was_damaged_put_aside(
    machine: Machine, database: str
) -> None:
    on(machine, database)
    machine.begin(SERVE)
    first = machine.say("refund 40 euros for order 17")
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            machine.say("hello")

    writer = threading.Thread(target=busy)
    writer.start()
    try:
        machine.shell(recipe("Backing up PostgreSQL"))
    finally:
        stop.set()
        writer.join()
    decide(machine, machine.waiting()[0]["id"])
    ended(machine, first["sessionId"])
    paid = tool_outputs(machine, first["sessionId"])

    assert "sessions" in machine.shell(recipe("Restoring PostgreSQL"))
    machine.shell(recipe("Restoring PostgreSQL", 1))
    (waiting,) = machine.waiting()
    assert waiting["sessionId"] == first["sessionId"]
    decide(machine, waiting["id"])
    ended(machine, first["sessionId"])
    assert tool_outputs(machine, first["sessionId"]) == paid


def test_sessions_move_from_sqlite_to_postgresql_with_their_pauses_and_audit(machine: Machine, database: str) -> None:
    machine.begin(SERVE)
    done = machine.say("refund 40 euros for order 17")["sessionId"]
    decided = machine.waiting()[0]["id"]
    decide(machine, decided)
    ended(machine, done)
    waits = machine.say("refund 5 euros for order 6")["sessionId"]
    said = machine.shell(recipe("From SQLite to PostgreSQL"), NEW_STORE=database)
    assert "Stored 2 sessions." in said
    assert [w["sessionId"] for w in machine.waiting()] == [waits]
    assert [d["by"] for d in machine.get(f"/api/interrupts/{decided}/history")["items"]] == ["ann"]
    decide(machine, machine.waiting()[0]["id"])
    ended(machine, waits)


# -- back to a moment --------------------------------------------------------------------------------------------------


class Cluster:
    """PostgreSQL servers of one's own, as scripts/with_postgres.py runs them."""

    def __init__(self, folder: Path) -> None:
        self.tools: Any = importlib.import_module("scripts.with_postgres")
        self.folder = folder
        folder.chmod(0o711)
        programs = self.tools.installed()
        if programs is None:
            pytest.skip("NOT TESTED: no PostgreSQL server is installed (Debian: apt-get install postgresql)")
        self.programs = programs

    def url(self) -> str:
        return f"postgresql:///postgres?host={self.folder / 'socket'}&user=adjourn"

    def own(self, path: Path) -> None:
        """Gives a tree to the account that the server runs under."""
        if user := self.tools.server_user():
            for found in [path, *path.rglob("*")]:
                shutil.chown(found, user)


def test_a_server_is_brought_back_to_the_moment_before_a_mistake() -> None:
    with tempfile.TemporaryDirectory(prefix="adjourn-pitr-") as name:
        folder = Path(name)
        cluster = Cluster(folder)
        backups = folder / "backups"
        (backups / "wal").mkdir(parents=True)
        cluster.own(backups)

        def local(text: str) -> str:
            return text.replace("/var/backups/adjourn", str(backups))

        def bash(script: str, **env: str) -> None:
            whole = {"PATH": f"{cluster.programs}:/usr/bin:/bin", **env}
            done = subprocess.run(
                ["bash", "-euc", local(script)], env=whole, capture_output=True, text=True, check=False, cwd="/"
            )
            assert done.returncode == 0, done.stdout + done.stderr

        assert cluster.tools.create(cluster.programs, folder) is not None
        try:
            cluster.tools.stop(cluster.programs, folder)
            with (folder / "data/postgresql.conf").open("a") as conf:
                conf.write(local(OPERATIONS.block("Back to a moment of PostgreSQL", 0, "ini")))
            started = cluster.tools.start(cluster.programs, folder)
            assert started.returncode == 0, started.stdout
            bash(recipe("Back to a moment of PostgreSQL"), PRIMARY=cluster.url())
            kept, moment = _before_and_after(cluster.url())
            cluster.tools.stop(cluster.programs, folder)  # its last segment of the WAL is archived

            aside = folder / "aside"
            (folder / "data").rename(aside)
            bash(recipe("Back to a moment of PostgreSQL", 1), NEW_DATA=str(folder / "data"), MOMENT=moment)
            cluster.own(folder / "data")
            (folder / "data").chmod(0o700)
            started = cluster.tools.start(cluster.programs, folder)
            assert started.returncode == 0, started.stdout + (folder / "log").read_text()
            store = PostgresStore(cluster.url(), connections=2)
            try:
                rows = store.submit(lambda tx: tx.interrupts(InterruptQuery(status="open")), read=True).result()
                assert [r.session_id for r in rows] == [kept]
            finally:
                store.close()
        finally:
            cluster.tools.stop(cluster.programs, folder, "immediate")


def _before_and_after(url: str) -> tuple[str, str]:
    """A session that waits, the moment after it, and then the mistake: it is deleted, and another begins."""
    import asyncio

    import psycopg

    from adjourn import Adjourn, AgentInit
    from adjourn.testing import ScriptedModel, call

    async def work() -> str:
        ai = Adjourn(model=ScriptedModel([call("pay", {"n": 1}), call("pay", {"n": 2})]))

        @ai.tool(approval=True)
        def pay(n: int) -> int:
            return n

        agent = ai.define_agent("desk", tools=[pay], store=PostgresStore(url, connections=2))
        await agent.connect(AgentInit("s_kept")).send("one").output
        with psycopg.connect(url, autocommit=True) as db:
            row = db.execute("select clock_timestamp()::text").fetchone()
            assert row is not None
        await ai.sessions.delete("s_kept", force=True)
        await agent.connect(AgentInit("s_later")).send("two").output
        await ai.aclose()
        return str(row[0])

    return "s_kept", asyncio.run(work())

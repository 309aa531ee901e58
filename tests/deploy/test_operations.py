"""Each recipe of docs/operations.md, in the situation that it is for: services on a SQLite store on one machine."""

import json
import re
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from msgspec.structs import replace

from adjourn.records import InterruptQuery, SessionQuery, SessionRecord
from adjourn.store import Tx
from adjourn.stores.sqlite import SQLiteStore
from deploy.deploy_kit import Machine, Page, wait_until

OPERATIONS = Page("operations.md")
SERVE, ONE, TWO = "adjourn-serve.service", "adjourn-worker@1.service", "adjourn-worker@2.service"
STORE = "/var/lib/adjourn/sessions.db"

T = TypeVar("T")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def recipe(heading: str, number: int = 0) -> str:
    return OPERATIONS.block(heading, number)


def use_crew(machine: Machine) -> None:
    """Its application has the agent `crew` as well."""
    (machine.app / "app.py").rename(machine.app / "deployed.py")
    shutil.copy(Path(__file__).parent / "crew.py", machine.app / "app.py")


def effects(machine: Machine) -> list[str]:
    path = machine.app / "effects.txt"
    return path.read_text().splitlines() if path.exists() else []


def change(machine: Machine, work: Callable[[Tx], T]) -> T:
    store = SQLiteStore(machine.path(STORE))
    try:
        return store.submit(work).result()
    finally:
        store.close()


def known(tx: Tx, session: str) -> SessionRecord:
    found = tx.session(session)
    assert found is not None
    return found


def age(machine: Machine, session: str, seconds: float) -> None:
    """Nothing happened in it for so long."""
    change(machine, lambda tx: tx.put_session(replace(known(tx, session), updated=time.time() - seconds)))


def decide(machine: Machine, interrupt: str, verb: str = "restart", **body: Any) -> Any:
    with machine.http() as http:
        got = http.post(f"/api/interrupts/{interrupt}/{verb}", json=body)
        assert got.status_code == 202, got.text
        return got.json()


def ended(machine: Machine, session: str) -> Any:
    """The session, once it rests at an end."""

    def rests() -> Any:
        found = machine.get(f"/api/sessions/{session}")
        return found if not found["session"]["running"] and not found["interrupts"] else None

    return wait_until(rests, "the session rests")


def tool_outputs(machine: Machine, session: str) -> list[Any]:
    entries = machine.get(f"/api/sessions/{session}/timeline")["items"]
    return [e["facts"].get("output") for e in entries if e["kind"] == "tool"]


# -- looking ---------------------------------------------------------------------------------------------------------


def test_what_waits_and_what_is_wrong_is_seen_from_a_shell(machine: Machine) -> None:
    machine.begin(SERVE)
    machine.say("refund 40 euros for order 17")
    said = machine.shell(recipe("A shell to work in", 1))
    assert "refund" in said
    assert "Nothing is wrong." in said


# -- backups ---------------------------------------------------------------------------------------------------------


def test_a_sqlite_store_in_use_is_backed_up_and_restored_and_what_came_between_is_lost(machine: Machine) -> None:
    machine.begin(SERVE)
    first = machine.say("refund 40 euros for order 17")
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            machine.say("hello")

    writer = threading.Thread(target=busy)
    writer.start()
    try:
        copies = [Path(machine.shell(recipe("Backing up SQLite")).strip()) for _ in range(2)]
    finally:
        stop.set()
        writer.join()
    assert all(c.parent == machine.path("/var/backups/adjourn") and c.exists() for c in copies)
    assert copies[-1].stat().st_mode & 0o777 == 0o600

    # Between the backup and the restore somebody decides, the tool runs, and a session begins.
    decide(machine, machine.waiting()[0]["id"])
    ended(machine, first["sessionId"])
    paid = tool_outputs(machine, first["sessionId"])
    later = machine.say("refund 5 euros for order 6")

    said = machine.shell(recipe("Restoring SQLite"))
    assert machine.running == {}
    assert "is whole" in said
    machine.shell(recipe("Restoring SQLite", 1))
    assert set(machine.running) == {SERVE, ONE, TWO}
    with machine.http() as http:
        assert http.get(f"/api/sessions/{later['sessionId']}").status_code == 404
    waiting = machine.waiting()
    assert [w["sessionId"] for w in waiting] == [first["sessionId"]]
    # It waits again, and its key is the one that the first payment had.
    decide(machine, waiting[0]["id"])
    ended(machine, first["sessionId"])
    assert tool_outputs(machine, first["sessionId"]) == paid
    assert paid[0]["key"]


def test_the_backup_unit_makes_a_copy_and_keeps_as_many_as_it_says(machine: Machine) -> None:
    machine.begin(SERVE)
    machine.stop(SERVE)
    folder = machine.path("/var/backups/adjourn")
    for n in range(20):
        (folder / f"sessions-200001{n + 1:02}T000000Z.db").write_bytes(b"old")
    (folder / "other-20000101T000000Z.db").write_bytes(b"not ours")
    machine.shell("systemctl start adjourn-backup.service")
    kept = sorted(p.name for p in folder.glob("sessions-*.db"))
    assert len(kept) == 14
    assert kept[0].startswith("sessions-200001")
    assert not kept[-1].startswith("sessions-200001")
    assert (folder / "other-20000101T000000Z.db").exists()


def test_a_backup_that_cannot_be_made_leaves_nothing_that_looks_like_one(machine: Machine) -> None:
    machine.path(STORE).write_bytes(b"SQLite format 3\0" + b"damage" * 1000)
    said = machine.shell(recipe("Backing up SQLite"), code=1)
    assert "was not backed up" in said
    assert list(machine.path("/var/backups/adjourn").iterdir()) == []


# -- workers and sessions in trouble -----------------------------------------------------------------------------------


def test_a_killed_workers_turn_comes_back_as_a_question_that_is_answered(machine: Machine) -> None:
    use_crew(machine)
    machine.begin(SERVE)
    run = machine.say("hold 1", agent="crew", wait=0)
    wait_until(lambda: effects(machine) == ["hold 1"], "the tool runs")
    machine.kill(SERVE)
    machine.begin(ONE, TWO)
    store = SQLiteStore(machine.path(STORE))
    try:

        def asked() -> Any:
            rows = store.submit(lambda tx: tx.interrupts(InterruptQuery(status="open")), read=True).result()
            return rows[0] if rows else None

        row = wait_until(asked, "the lease of the killed process has ended")
    finally:
        store.close()
    assert row.reason == "outcome_unknown"
    shown = machine.shell(recipe("A worker was killed"), INTERRUPT=row.id)
    assert "hold" in shown
    machine.shell(recipe("A worker was killed", 1), INTERRUPT=row.id)
    machine.begin(SERVE)
    ended(machine, run["sessionId"])
    assert effects(machine) == ["hold 1"]  # never a second time


def test_a_lease_that_does_not_end_is_ended(machine: Machine) -> None:
    machine.begin(SERVE)
    session = machine.say("refund 40 euros for order 17")["sessionId"]
    machine.stop(SERVE)

    def hold(tx: Tx) -> None:
        head = tx.snapshot(known(tx, session).head or "")
        assert head is not None
        tx.put_snapshot(replace(head, heartbeat=time.time() - 600))
        tx.put_session(replace(known(tx, session), lease_until=time.time() + 7200, holder="p_wrong", pending=True))

    change(machine, hold)
    said = machine.shell(recipe("A lease that does not end"), code=8)  # what a worker has yet to go on with is left
    assert "session.stuck_lease" in said
    assert "left in the middle" in said
    assert change(machine, lambda tx: known(tx, session)).lease_until <= time.time()


def test_a_session_that_ends_its_process_is_taken_out_and_brought_back_when_its_tool_is_mended(
    machine: Machine,
) -> None:
    use_crew(machine)
    machine.begin(SERVE)
    healthy = machine.say("pay 3", agent="crew")
    with pytest.raises(httpx.TransportError):
        machine.say("poison 1", agent="crew")
    assert machine.running.pop(SERVE).wait(60) < 0
    # The next one takes it up, and ends as well.
    machine.start(ONE)
    assert machine.running.pop(ONE).wait(60) < 0
    assert effects(machine) == ["poison 1", "poison 1"]
    rows = change(machine, lambda tx: tx.sessions(SessionQuery(agents=("crew",))))
    session = next(r.id for r in rows if r.id != healthy["sessionId"])

    said = machine.shell(recipe("A session that ends its process"), SESSION=session)
    assert "Wrote 1 session" in said
    assert "Deleted 1 session" in said
    assert set(machine.running) == {SERVE, ONE}
    assert [w["sessionId"] for w in machine.waiting()] == [healthy["sessionId"]]
    assert effects(machine) == ["poison 1", "poison 1"]

    (machine.app / "antidote").touch()
    machine.shell(recipe("A session that ends its process", 1), SESSION=session)
    ended(machine, session)
    assert effects(machine) == ["poison 1"] * 3
    assert tool_outputs(machine, session)[-1] == "harmless"


# -- the disk --------------------------------------------------------------------------------------------------------


def test_on_a_full_disk_nothing_is_acknowledged_and_all_goes_on_when_there_is_room(machine: Machine) -> None:
    machine.begin(SERVE)
    first = machine.say("refund 40 euros for order 17")
    waiting = machine.waiting()[0]["id"]
    process = machine.running[SERVE]
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, hard))
    with machine.http() as http:
        refused = http.post(f"/api/interrupts/{waiting}/restart", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "store-unavailable")
        assert http.post("/api/agents/desk/send", json={"message": "hello"}).status_code == 503
        assert http.get("/ready").status_code == 200
        assert [i["id"] for i in http.get("/api/interrupts").json()["items"]] == [waiting]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    assert "would be deleted" in machine.shell(recipe("A full disk"))
    decide(machine, waiting)
    ended(machine, first["sessionId"])
    assert process.poll() is None
    machine.begin(ONE)
    machine.shell(recipe("A full disk", 1))
    assert machine.get(f"/api/sessions/{first['sessionId']}")


# -- secrets ---------------------------------------------------------------------------------------------------------


def sign_in(machine: Machine, token: str) -> str:
    with machine.http("none") as http:
        got = http.post("/api/session", json={"token": token}, headers={"Authorization": ""})
        assert got.status_code in (200, 201, 204), got.text
        return got.headers["set-cookie"].split(";")[0]


def knows(machine: Machine, cookie: str) -> bool:
    with machine.http("none") as http:
        del http.headers["Authorization"]
        return http.get("/api/me", headers={"Cookie": cookie}).status_code == 200


def test_a_leaked_token_is_taken_away_with_its_cookies_and_what_it_did_is_listed(machine: Machine) -> None:
    said = machine.shell("python -m adjourn.server ben admin >> /etc/adjourn/tokens.toml")
    leaked = next(w for w in said.split() if w.startswith("adj_"))
    machine.begin(SERVE)
    machine.say("refund 40 euros for order 17")
    machine.say("refund 50 euros for order 18")
    mine, theirs = [w["id"] for w in machine.waiting()]
    decide(machine, mine, "decline", reason="no")
    with machine.http(leaked) as http:
        assert http.post(f"/api/interrupts/{theirs}/respond", json={"output": 1}).status_code == 202
    cookie = sign_in(machine, leaked)
    assert knows(machine, cookie)

    tokens = machine.path("/etc/adjourn/tokens.toml")
    tables = re.findall(r"\[\[token\]\][^\[]*", tokens.read_text())
    tokens.write_text("".join(t for t in tables if 'name = "ben"' not in t))
    listed = machine.shell(recipe("A token leaked"), NAME="ben")
    (row,) = [json.loads(line) for line in listed.splitlines()]
    assert (row["by"], row["verb"], row["interrupt"], row["address"]) == ("ben", "respond", theirs, "127.0.0.1")
    with machine.http(leaked) as http:
        assert http.get("/api/interrupts").status_code == 401
    assert not knows(machine, cookie)
    assert machine.get("/api/me")["name"] == "ann"

    said = machine.shell(recipe("A token leaked", 1), NAME="ben")
    with machine.http(next(w for w in said.split() if w.startswith("adj_"))) as http:
        assert http.get("/api/me").json()["role"] == "decide"


def test_a_new_secret_signs_nobody_out_until_the_old_one_is_dropped(machine: Machine) -> None:
    machine.begin(SERVE)
    cookie = sign_in(machine, machine.token)
    machine.shell(recipe("Changing the secret"))
    secret = machine.path("/etc/adjourn/secret")
    assert len(secret.read_text().split()) == 2
    assert secret.stat().st_mode & 0o077 == 0
    assert knows(machine, cookie)
    newer = sign_in(machine, machine.token)
    machine.shell(recipe("Changing the secret", 1))
    assert len(secret.read_text().split()) == 1
    assert not knows(machine, cookie)
    assert knows(machine, newer)


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_a_decision_that_was_a_mistake_is_ended_while_its_tool_runs(machine: Machine) -> None:
    use_crew(machine)
    machine.begin(SERVE)
    session = machine.say("hold 1", agent="crew", wait=0)["sessionId"]
    wait_until(lambda: effects(machine) == ["hold 1"], "the tool runs")
    machine.shell(recipe("A decision that was a mistake"), SESSION=session)
    wait_until(lambda: not machine.get(f"/api/sessions/{session}")["session"]["running"], "it ended")
    kinds = [e["kind"] for e in machine.get(f"/api/sessions/{session}/timeline")["items"]]
    assert kinds[-1] == "end"


def test_a_decision_that_was_a_mistake_is_made_otherwise_on_a_branch(machine: Machine) -> None:
    machine.begin(SERVE)
    session = machine.say("refund 40 euros for order 17")["sessionId"]
    declined = machine.waiting()[0]["id"]
    decide(machine, declined, "decline", reason="the wrong one")
    ended(machine, session)
    paused = machine.get(f"/api/sessions/{session}")["snapshots"]
    snapshot = next(s["id"] for s in paused if s["finishReason"] == "interrupted")
    said = machine.shell(recipe("A decision that was a mistake", 1), SESSION=session, SNAPSHOT=snapshot)
    branch = json.loads(said[said.rindex('{"sessionId"') :] if '{"sessionId"' in said else said.splitlines()[-1])
    (waiting,) = machine.waiting()
    assert waiting["id"] != declined
    assert waiting["id"] in json.dumps(branch)
    decide(machine, waiting["id"])
    ended(machine, waiting["sessionId"])
    assert tool_outputs(machine, waiting["sessionId"])[-1]["refunded"] == 40


# -- time, versions, age -----------------------------------------------------------------------------------------------


def test_what_was_stored_in_the_future_is_told(machine: Machine) -> None:
    machine.begin(SERVE)
    session = machine.say("hello")["sessionId"]
    machine.stop(SERVE)
    age(machine, session, -3600)
    assert "in the future" in machine.shell(recipe("A clock that was wrong"))


def test_services_are_restarted_one_by_one_while_a_turn_runs_and_people_decide(machine: Machine) -> None:
    use_crew(machine)
    machine.begin(SERVE, ONE, TWO)
    sessions = [machine.say(f"pay {n}", agent="crew")["sessionId"] for n in range(4)]
    (machine.app / "go").touch()
    decided: list[str] = []

    def people() -> None:
        # As a client does: with a key, and once more where the connection was refused or lost.
        for row in machine.waiting():
            while row["id"] not in decided:
                try:
                    with machine.http() as http:
                        got = http.post(
                            f"/api/interrupts/{row['id']}/restart", json={}, headers={"Idempotency-Key": row["id"]}
                        )
                    assert got.status_code == 202, got.text
                    decided.append(row["id"])
                except httpx.TransportError:
                    continue

    deciding = threading.Thread(target=people)
    deciding.start()
    said = machine.shell(recipe("Upgrading"))
    deciding.join()
    assert machine.codes == {SERVE: 0, ONE: 0, TWO: 0}
    for session in sessions:
        ended(machine, session)
    assert sorted(effects(machine)) == [f"pay {n}" for n in range(4)]
    assert "problem" not in said
    assert "Nothing is wrong" in machine.shell(recipe("Upgrading", 1))


def test_what_is_old_goes_and_what_waits_stays(machine: Machine) -> None:
    machine.begin(SERVE)
    old, new = machine.say("hello")["sessionId"], machine.say("hello")["sessionId"]
    waits = machine.say("refund 40 euros for order 17")["sessionId"]
    machine.stop(SERVE)
    for session in (old, waits):
        age(machine, session, 100 * 86400)
    said = machine.shell(recipe("Getting rid of what is old"))
    assert "1 session would be deleted" in said
    assert "Deleted 1 session" in said
    rows = change(machine, lambda tx: [tx.session(s) is not None for s in (old, new, waits)])
    assert rows == [False, True, True]


def test_the_purge_unit_does_the_same(machine: Machine) -> None:
    machine.begin(SERVE)
    old = machine.say("hello")["sessionId"]
    machine.stop(SERVE)
    age(machine, old, 100 * 86400)
    machine.shell("systemctl start adjourn-purge.service")
    assert change(machine, lambda tx: tx.session(old)) is None


# -- the page itself ---------------------------------------------------------------------------------------------------


def test_every_block_of_the_page_is_run_by_some_test() -> None:
    here = "".join(p.read_text() for p in Path(__file__).parent.glob("test_operations*.py"))
    missing: list[str] = []
    heading = ""
    count = 0
    for line in OPERATIONS.text.splitlines():
        if line.startswith("## "):
            heading, count = line[3:], 0
        elif line == "```bash":
            wanted = f'recipe("{heading}")' if count == 0 else f'recipe("{heading}", {count})'
            single = wanted.replace('"', "'")
            if wanted not in here and single not in here:
                missing.append(wanted)
            count += 1
    assert missing == []

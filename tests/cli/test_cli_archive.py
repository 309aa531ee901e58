"""`adjourn export`, `import` and `purge`."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn.cli import archive
from adjourn.errors import StoreUnavailable
from adjourn.lease import transact
from cli.cli_kit import APP, Shop


def test_what_is_exported_is_imported_as_it_was(shop: Shop) -> None:
    waits, rests = shop.say("pay 5"), shop.say("hello")
    exported = shop("export")
    assert [json.loads(line)["session"]["id"] for line in exported.out.splitlines()] == [waits, rests]
    target = str(shop.folder / "other.db")
    got = shop.run("import", "--store", target, "--json", input=exported.out)
    assert got.json == {"imported": 2, "nested": 0}
    again = shop.run("export", "--store", target)
    assert again.out.replace(" ", "") == exported.out.replace(" ", "")
    assert len(shop.run("inbox", "--store", target, "--json").json["items"]) == 1


def test_chosen_sessions_are_exported_to_a_file(shop: Shop) -> None:
    chosen, _ = shop.say("pay 5"), shop.say("hello")
    path = shop.folder / "out.jsonl"
    got = shop("export", chosen[:9], "--output", str(path), "--json")
    assert got.json == {"exported": 1, "nested": 0, "file": str(path)}
    assert json.loads(path.read_text(encoding="utf-8"))["session"]["id"] == chosen
    assert shop("export", "nobody").code == 3


def test_an_import_of_something_else_is_refused_with_the_line(shop: Shop) -> None:
    got = shop.run("import", "--store", str(shop.folder / "new.db"), input='{"no": 1}\n')
    assert got.code == 5
    assert "line 1" in got.err


def test_an_import_of_what_is_there_is_a_conflict(shop: Shop) -> None:
    shop.say("hello")
    got = shop("import", input=shop("export").out)
    assert got.code == 4


def test_purge_deletes_the_sessions_that_are_named_after_a_yes(shop: Shop) -> None:
    gone, kept = shop.say("hello"), shop.say("hello")
    got = shop("purge", gone)
    assert got.code == 2
    assert "--yes" in got.err
    assert shop("purge", gone, "--yes", "--json").json == {
        "sessions": [gone],
        "deleted": 1,
        "dryRun": False,
        "feedEntries": 0,
    }
    assert [i["id"] for i in shop("sessions", "--json").json["items"]] == [kept]


def test_purge_of_a_session_that_waits_needs_force_and_keeps_the_audit(shop: Shop) -> None:
    waits = shop.say("pay 5")
    interrupt = shop.waiting()[0].id
    got = shop("purge", waits, "--yes", "--json")
    assert (got.code, got.error["code"]) == (4, "session_paused")
    assert shop("purge", waits, "--yes", "--force").code == 0
    assert shop("sessions", "--json").json["items"] == []

    async def verbs(ai: Any) -> list[str]:
        return [d.verb for d in await ai.inbox.history(interrupt)]

    assert shop.with_app(verbs) == ["cancel"]


def test_purge_by_age_takes_only_what_has_been_at_rest_so_long(shop: Shop) -> None:
    shop.say("hello")
    shop.say("pay 5")
    assert shop("purge", "--older-than", "1d", "--yes", "--json").json["deleted"] == 0
    dry = shop("purge", "--older-than", "0s", "--dry-run", "--json").json
    assert (len(dry["sessions"]), dry["deleted"], dry["dryRun"]) == (1, 0, True)
    assert len(shop("sessions", "--json").json["items"]) == 2
    assert shop("purge", "--older-than", "0s", "--yes", "--json").json["deleted"] == 1
    assert len(shop.waiting()) == 1


def test_what_comes_alive_before_it_is_purged_stays(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.say("hello")
    old: Any = vars(archive)["_old"]

    async def seen_and_then_used(ai: Any, cutoff: float) -> Any:
        rows = await old(ai, cutoff)
        for row in rows:
            await transact(ai.stores()[0], lambda tx, row=row: tx.put_session(replace(row, updated=time.time())))
        return rows

    monkeypatch.setattr(archive, "_old", seen_and_then_used)
    got = shop("purge", "--older-than", "0s", "--yes", "--json").json
    assert (got["sessions"], got["deleted"]) == ([], 0)
    assert len(shop("sessions", "--json").json["items"]) == 1


def test_purge_by_age_shortens_the_feed_and_says_so(shop: Shop) -> None:
    async def entries(ai: Any) -> int:
        return len(await ai.inbox.changes())

    for _ in range(3):
        shop.say("pay 5")
    shop.say("hello")
    assert shop.with_app(entries) == 3
    assert "the inbox's feed" in shop("purge", "--older-than", "0s", "--dry-run").err
    assert shop.with_app(entries) == 3
    got = shop("purge", "--older-than", "0s", "--yes")
    assert got.out == "Deleted 1 session, and 2 entries of the inbox's feed.\n"
    shop.say("pay 5")
    assert shop("purge", "--older-than", "0s", "--json").json["feedEntries"] == 0
    assert shop("purge", "--older-than", "0s", "--yes", "--json").json == {
        "sessions": [],
        "deleted": 0,
        "dryRun": False,
        "feedEntries": 1,
    }


@pytest.mark.parametrize(
    "text,seconds", [("45s", 45), ("30m", 1800), ("12h", 43200), ("90d", 7776000), ("1.5w", 907200)]
)
def test_ages_are_written_with_a_unit(text: str, seconds: float) -> None:
    from adjourn.cli.archive import seconds_of

    assert seconds_of(text) == seconds


def test_an_export_onto_the_store_itself_is_refused_and_the_store_is_whole(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop("export", "--output", shop.store)
    assert got.code == 2
    assert "is the store itself" in got.err
    assert shop.run("export", "--app", APP, "--output", f"{shop.store}-wal").code == 2
    assert len(shop.waiting()) == 1


def test_an_export_that_fails_leaves_the_file_that_was_there(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.say("hello")
    target = shop.folder / "kept.jsonl"
    target.write_text("the one of yesterday", encoding="utf-8")

    async def broken(*_: object) -> AsyncIterator[bytes]:
        yield b"{}"
        raise StoreUnavailable("the store went away")

    monkeypatch.setattr("adjourn.archive.Archive.export", broken)
    assert shop("export", "--output", str(target)).code == 6
    assert target.read_text(encoding="utf-8") == "the one of yesterday"
    assert [p.name for p in shop.folder.iterdir() if "part" in p.name] == []

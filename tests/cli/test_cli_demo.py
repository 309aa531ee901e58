"""`adjourn demo`: offline, short, and a way in to the other commands."""

from cli.cli_kit import Shop


def test_the_demo_shows_a_pause_and_both_answers_and_names_the_big_one(shop: Shop) -> None:
    got = shop.run("demo")
    assert got.code == 0
    for expected in ("restart", "respond", "40 euros are on their way", "The courier comes on Tuesday", "make demo"):
        assert expected in got.out


def test_the_demo_as_json_has_the_turns_and_nothing_else(shop: Shop) -> None:
    got = shop.run("demo", "--json")
    assert [t["finishReason"] for t in got.json["turns"]] == ["interrupted", "stop", "interrupted", "stop"]
    assert got.json["store"] is None


def test_the_demo_leaves_one_to_decide_with_the_other_commands(shop: Shop) -> None:
    store = str(shop.folder / "demo.db")
    assert shop.run("demo", "--keep", store).code == 0
    (item,) = shop.run("inbox", "--store", store, "--json").json["items"]
    assert item["tool"] == "refund"
    assert shop.run("restart", item["id"], "--store", store).code == 0


def test_what_the_demo_left_is_decided_and_gone_on_with_as_it_says(shop: Shop) -> None:
    store = str(shop.folder / "demo.db")
    said = shop.run("demo", "--keep", store).out
    (line,) = [line for line in said.splitlines() if line.startswith("Decide it")]
    variable, _, *arguments = line.split("\t")[1].split()
    name, _, place = variable.partition("=")
    done = shop.process(*arguments, **{name: place})
    assert done.code == 0, done
    assert "Done: 40 euros are on their way" in done.out


def test_the_demo_can_be_talked_with(shop: Shop) -> None:
    lines = "give me 12 euros back for order 9\n/approve\nwhen will it be sent?\n/decline closed\nhello\n"
    got = shop.run("chat", "adjourn.cli.demo_app:make", input=lines)
    assert "Done: 12 euros" in got.out
    assert "declined: closed" in got.out
    assert "I am a script" in got.out

"""Runs the measures over all candidates, in turn, so that what else the machine does hits everybody alike."""

import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.pool import Worker, WorkerFailed

Open = Callable[[str, str], Worker]
"""Starts the worker of a module and a name in it."""


@dataclass(frozen=True)
class Who:
    """A candidate: its file in peers/, its name there, and how it is called in the tables."""

    module: str
    name: str
    label: str
    methods: tuple[str, ...]

    @property
    def ours(self) -> bool:
        return self.module == "adjourn_"


@dataclass
class Row:
    """All samples of one candidate in one measure, in seconds; `medians` has the median of each round."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])
    medians: dict[int, float] = field(default_factory=dict[int, float])
    minima: dict[int, float] = field(default_factory=dict[int, float])


@dataclass
class Table:
    """One measure of everybody. `failed` says why somebody is missing."""

    rows: dict[Who, Row] = field(default_factory=dict[Who, Row])
    failed: dict[Who, str] = field(default_factory=dict[Who, str])

    def fastest_peer(self) -> Who | None:
        peers = [w for w, r in self.rows.items() if not w.ours and r.wall]
        return min(peers, key=lambda w: statistics.median(self.rows[w].wall), default=None)

    def ratio(self, who: Who, to: Who) -> float:
        """The median, over the rounds, of how many times longer `who` took than `to` in the same round."""
        mine, theirs = self.rows[who].medians, self.rows[to].medians
        return statistics.median([mine[r] / theirs[r] for r in mine if r in theirs] or [float("nan")])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def in_turn(workers: dict[Who, Worker], rounds: int) -> Iterable[tuple[int, Who, Worker]]:
    """Everybody once a round, each round beginning with another."""
    everybody = list(workers.items())
    for turn in range(rounds):
        first = turn % len(everybody) if everybody else 0
        for who, worker in everybody[first:] + everybody[:first]:
            yield turn, who, worker


def compare(workers: dict[Who, Worker], needs: str, rounds: int, **order: Any) -> Table:
    """Runs one measure. The first round is for warming up and is not kept; who fails is left out from then on."""
    table = Table()
    able = {who: worker for who, worker in workers.items() if needs in who.methods}
    for turn, who, worker in in_turn(able, rounds + 1):
        if who in table.failed:
            continue
        try:
            got = worker.ask(**order)
        except WorkerFailed as e:
            say(f"  left out: {e}")
            table.failed[who] = str(e)
            table.rows.pop(who, None)
            continue
        if turn:
            row = table.rows.setdefault(who, Row())
            row.wall += got["wall"]
            row.cpu += got["cpu"]
            row.medians[turn] = statistics.median(got["wall"])
            row.minima[turn] = min(got["wall"])
    return table


@dataclass
class Flight:
    """What the sessions of one candidate cost that are paused all at once: by their number, a list over the rounds."""

    wall: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    cpu: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    held: list[float] = field(default_factory=list[float])

    def rate(self, n: int) -> float:
        """Sessions a second."""
        return 1 / statistics.median(self.wall[n])


def fly(
    everybody: list[Who], start: Open, sizes: tuple[int, ...], rounds: int
) -> tuple[dict[Who, Flight], dict[Who, str]]:
    """Sessions in flight. A fresh process a round: the memory of earlier sessions would hide what new ones take."""
    flights: dict[Who, Flight] = {}
    failed: dict[Who, str] = {}
    most = max(sizes)
    for turn in range(rounds):
        first = turn % len(everybody)
        for who in everybody[first:] + everybody[:first]:
            if "pause" not in who.methods or who in failed:
                continue
            worker: Worker | None = None
            try:
                worker = start(who.module, who.name)
                worker.ask(measure="pause", n=30)
                flight = flights.setdefault(who, Flight())
                for n in sorted(sizes, reverse=True):
                    # The small ones more than once, so that noise weighs less in them.
                    for _ in range(max(1, min(3, most // n))):
                        got = worker.ask(measure="in_flight", n=n)
                        flight.wall.setdefault(n, []).append(got["wall"])
                        flight.cpu.setdefault(n, []).append(got["cpu"])
                        if n == most:
                            flight.held.append(got["bytes"])
            except WorkerFailed as e:
                say(f"  left out: {e}")
                failed[who] = str(e)
                flights.pop(who, None)
            finally:
                if worker is not None:
                    worker.close()
    return flights, failed

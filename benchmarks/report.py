"""Markdown tables."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.rounds import Flight, Table, Who
from benchmarks.startup import Installed, Startup


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Three digits that count."""
    if value != value:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def times(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}"


def missing(failed: Mapping[Who, str]) -> str:
    return "".join(f"\nNot measured: {who.label} ({why.splitlines()[0][:160]}).\n" for who, why in failed.items())


def operations(table: Table, scale: float = 1e6) -> str:
    """One row a candidate, the quickest first."""
    to = table.fastest_peer()
    rows: list[list[str]] = []
    for who, row in sorted(table.rows.items(), key=lambda item: statistics.median(item[1].wall)):
        rows.append(
            [
                f"**{who.label}**" if who.ours else who.label,
                number(statistics.median(row.wall) * scale),
                number(min(row.wall) * scale),
                number(statistics.median(row.cpu) * scale),
                times(table.ratio(who, to)) if to is not None else "-",
                times(min(row.wall) / min(table.rows[to].wall)) if to is not None else "-",
                times(statistics.median(row.cpu) / statistics.median(table.rows[to].cpu)) if to is not None else "-",
            ]
        )
    heads = ["", "wall median µs", "min µs", "CPU median µs", "ratio to the fastest peer", "of the minima", "of CPU"]
    return grid(heads, rows) + "\n" + missing(table.failed)


def startup(found: Sequence[Startup], sizes: Mapping[str, Installed | None]) -> str:
    """Import: net of what a process costs that imports nothing."""
    good = [s for s in found if not s.failed and s.walls]

    def net(s: Startup) -> float:
        return statistics.median([a - b for a, b in zip(s.walls, s.bare_walls, strict=True)])

    best = min([net(s) for s in good if s.label != "Adjourn"], default=float("nan"))
    rows: list[list[str]] = []
    for s in sorted(good, key=net):
        size = sizes.get(s.label)
        rows.append(
            [
                f"**{s.label}**" if s.label == "Adjourn" else s.label,
                f"`{s.statement}`",
                number(net(s) * 1e3),
                number((min(s.walls) - min(s.bare_walls)) * 1e3),
                number((min(s.cpus) - min(s.bare_cpus)) * 1e3),
                times(net(s) / best) if best == best else "-",
                f"{s.peak / 1e6:.1f}",
                str(len(size.distributions)) if size else "-",
                f"{size.size / 1e6:.1f}" if size else "-",
            ]
        )
    heads = [
        "",
        "statement",
        "net median ms",
        "net min ms",
        "net CPU min ms",
        "ratio",
        "peak MB",
        "distributions",
        "MB",
    ]
    text = grid(heads, rows) + "\n"
    bare = [s for s in good if s.label == "Adjourn"] or good
    if bare:
        text += f"\nThe interpreter alone: {min(bare[0].bare_walls) * 1e3:.0f} ms, {bare[0].bare_peak / 1e6:.1f} MB.\n"
    return text + "".join(f"\nNot measured: {s.label} ({s.failed[:160]}).\n" for s in found if s.failed)


def slow(found: Mapping[Who, tuple[float, float, float]], failed: Mapping[Who, str]) -> str:
    """The model's time while nobody sleeps and while the reader does, and the slow reader's own."""
    rows = [
        [
            f"**{who.label}**" if who.ours else who.label,
            number(free * 1e3),
            number(model * 1e3),
            number(reader * 1e3),
        ]
        for who, (free, model, reader) in sorted(found.items(), key=lambda item: item[1][1])
    ]
    heads = ["", "model done, quick reader ms", "model done, slow reader ms", "slow reader done ms"]
    return grid(heads, rows) + "\n" + missing(failed)


def flights(found: Mapping[Who, Flight], failed: Mapping[Who, str], sizes: Sequence[int]) -> str:
    most = max(sizes)
    peers = [f for who, f in found.items() if not who.ours]
    best = max([f.rate(most) for f in peers], default=float("nan"))
    thrifty = min([statistics.median(f.cpu[most]) for f in peers], default=float("nan"))
    rows: list[list[str]] = []
    for who, flight in sorted(found.items(), key=lambda item: -item[1].rate(most)):
        cpu = {n: statistics.median(flight.cpu[n]) for n in sizes}
        rows.append(
            [
                f"**{who.label}**" if who.ours else who.label,
                number(flight.rate(most)),
                number(1 / min(flight.wall[most])),
                f"{flight.rate(most) / best:.1f}" if best == best else "-",
                f"{thrifty / cpu[most]:.1f}" if best == best else "-",
                " / ".join(number(cpu[n] * 1e6) for n in sizes),
                f"{cpu[most] / cpu[min(sizes)]:.2f} ({min(flight.cpu[most]) / min(flight.cpu[min(sizes)]):.2f})",
                number(statistics.median(flight.held) / 1024),
            ]
        )
    heads = [
        "",
        f"{most:,} at once: sessions/s, median",
        "best",
        "times the fastest peer",
        "by CPU",
        "CPU µs a session at " + " / ".join(str(n) for n in sizes),
        f"growth {min(sizes)} to {most} (of the minima)",
        "KB a paused session",
    ]
    return grid(heads, rows) + "\n" + missing(failed)

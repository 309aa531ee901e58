"""Times, sizes and ids as people read them."""

from datetime import UTC, datetime

from adjourn.display import one_line

_STEPS = ((60.0, "s"), (60.0, "min"), (24.0, "h"), (365.0, "d"))
_FIRST, _LAST = -62_000_000_000.0, 253_000_000_000.0
"""What a calendar holds in every zone, roughly the years 5 to 9987. A row may have any number for a time."""


def span(seconds: float) -> str:
    """A length of time in its largest unit: "45 s", "3 min", "2 h", "5 d"."""
    value = min(max(0.0, seconds), _LAST)
    for size, unit in _STEPS:
        if value < size:
            return f"{int(value)} {unit}"
        value /= size
    return f"{int(value)} y"


def ago(at: float, now: float) -> str:
    return "now" if now - at < 1 else f"{span(now - at)} ago"


def left(until: float | None, now: float) -> str:
    """How long is left; "" for no end."""
    if until is None:
        return ""
    return "overdue" if until <= now else f"in {span(until - now)}"


def took(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def moment(seconds: float) -> datetime:
    """The time in UTC; one that no calendar has is the nearest that it has."""
    return datetime.fromtimestamp(min(max(_FIRST, seconds), _LAST), UTC)


def at(seconds: float) -> str:
    """The time in this machine's zone."""
    return moment(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(seconds: float) -> str:
    return moment(seconds).astimezone().strftime("%H:%M:%S")


def short(id: str) -> str:
    """An id as lists show it: enough to tell it apart, and accepted wherever an id is asked for. Imported ones may hold
    anything, so it is made safe to show.
    """
    head, _, rest = id.partition("_")
    return one_line(f"{head}_{rest[:8]}" if len(head) <= 2 and len(rest) == 32 else id)


def many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"

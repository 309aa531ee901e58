"""Where Adjourn's own time goes: `python -m benchmarks.profile agent pause [lines]`, or `... generate tool_turn`.

Samples the running line by a timer, which, unlike cProfile, charges nothing for a call. Unix only.
"""

import asyncio
import collections
import signal
import sys
import time
from types import FrameType

from benchmarks.peers import adjourn_


async def sample(candidate: str, what: str, seconds: float, by_line: bool) -> None:
    subject = adjourn_.CANDIDATES[candidate]()

    async def once() -> None:
        if what == "pause":
            await subject.resume(await subject.pause())
        elif what == "stream":
            await subject.stream(1000, False, 0.0)
        else:
            await subject.tool_turn()

    own: collections.Counter[str] = collections.Counter()
    below: collections.Counter[str] = collections.Counter()

    def name(frame: FrameType) -> str:
        file = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
        return f"{file}:{frame.f_lineno if by_line else frame.f_code.co_qualname}"

    def tick(_: int, frame: FrameType | None) -> None:
        at, seen = frame, set[str]()
        if at is not None:
            own[name(at)] += 1
        while at is not None:
            seen.add(name(at))
            at = at.f_back
        below.update(seen)

    for _ in range(100):
        await once()
    signal.signal(signal.SIGPROF, tick)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    runs, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        await once()
        runs += 1
    signal.setitimer(signal.ITIMER_PROF, 0)
    total = own.total()
    print(f"{candidate} {what}: {runs} runs, {seconds / runs * 1e6:.0f} us each, {total} samples")
    for title, counts in (("itself", own), ("with what it calls", below)):
        print(f"-- {title}")
        for where, n in counts.most_common(45):
            print(f"  {n / total * 100:5.1f}%  {where}")


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    asyncio.run(sample(sys.argv[1], sys.argv[2], 10.0, "lines" in sys.argv))


if __name__ == "__main__":
    main()

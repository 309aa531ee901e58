"""How often something may be done: token buckets in this process's memory."""

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

KEPT = 20_000


def network_of(address: str) -> str:
    """What an address is counted under: itself, or the /64 that an IPv6 address is in, which one client has all of."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))


class Buckets:
    """A bucket for each key (an address, a principal): it holds `per_minute` goes and fills up steadily.

    The memory is bounded: of very many keys, those that were not seen for longest begin anew. 0 a minute means no limit.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._rate = per_minute / 60.0
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """Takes one go, and returns 0; or the seconds to wait until there is one."""
        if not self._rate:
            return 0.0
        with self._lock:
            level, now = self._level(key)
            if level < 1.0:
                return (1.0 - level) / self._rate
            self._levels[key] = (level - 1.0, now)
            self._levels.move_to_end(key)
            while len(self._levels) > KEPT:
                self._levels.popitem(last=False)
            return 0.0

    def wait(self, key: str) -> float:
        """The seconds to wait until there is a go; takes none."""
        if not self._rate:
            return 0.0
        with self._lock:
            level, _ = self._level(key)
            return 0.0 if level >= 1.0 else (1.0 - level) / self._rate

    def _level(self, key: str) -> tuple[float, float]:
        now = self._clock()
        level, at = self._levels.get(key, (self._size, now))
        return min(self._size, level + (now - at) * self._rate), now

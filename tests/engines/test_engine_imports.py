"""What importing the engine needs, and what the rest of the library does not."""

import subprocess
import sys


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


def test_without_the_extra_the_error_names_the_command() -> None:
    done = run("import sys; sys.modules['temporalio'] = None; import adjourn.engines.temporal")
    assert "pip install 'adjourn[temporal]'" in done.stderr


def test_the_library_and_its_seam_for_engines_import_no_engine() -> None:
    done = run("import adjourn, adjourn.engine, sys; assert 'temporalio' not in sys.modules; print('none')")
    assert done.stdout == "none\n", done.stderr

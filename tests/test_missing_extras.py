"""What is optional and not installed is asked for by the name of its extra, wherever it is missed first."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module,missing,extra",
    [
        ("adjourn.server", "litestar", "server"),
        ("adjourn.server", "jinja2", "server"),
        ("adjourn.stores.postgres", "psycopg", "postgres"),
        ("adjourn.engines.temporal", "temporalio", "temporal"),
        ("adjourn.tracing", "opentelemetry", "otel"),
    ],
)
def test_a_module_whose_extra_is_missing_says_which_and_how_to_get_it(module: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("adjourn.errors.MissingExtra: ")
    assert f"pip install 'adjourn[{extra}]'" in last

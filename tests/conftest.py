import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Derandomized in CI, so that a red run says something about the change and not about the dice; the dice are for dev.
settings.register_profile(
    "ci", max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", max_examples=50, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the conformance specs and scenarios, which are not part of this repository."""
    named = os.environ.get("ADJOURN_SHARED")
    path = Path(named) if named else ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"no shared test data at {path}: set ADJOURN_SHARED to the folder that holds conformance/")
    return path


@pytest.fixture(scope="session")
def postgres_dsn() -> str:
    """The DSN of a real server whose databases the tests may create, fill and drop."""
    dsn = os.environ.get("ADJOURN_TEST_POSTGRES")
    if not dsn:
        pytest.skip(
            "NOT TESTED AGAINST POSTGRESQL: ADJOURN_TEST_POSTGRES is unset; "
            "run `python scripts/with_postgres.py python -m pytest …` to get a private server"
        )
    return dsn

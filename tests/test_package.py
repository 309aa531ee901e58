"""What the package promises as a whole: its public list, what importing it costs, and the shape of its files."""

import subprocess
import sys
from pathlib import Path

import adjourn
from adjourn import errors

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = (
    "pydantic",
    "anthropic",
    "google.genai",
    "openai",
    "litestar",
    "psycopg",
    "temporalio",
    "opentelemetry",
    "prometheus_client",
    "needle",
)


def test_the_public_list_is_complete_and_in_order() -> None:
    public = [name for name in vars(adjourn) if not name.startswith("_") and not _is_module(name)]
    assert sorted(public) == sorted(adjourn.__all__)
    assert adjourn.__all__ == sorted(adjourn.__all__)


def _is_module(name: str) -> bool:
    return isinstance(getattr(adjourn, name), type(sys))


def test_every_error_is_public_and_drawn_in_the_tree() -> None:
    classes = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception) and n[0] != "_"}
    assert classes == set(errors.__all__)
    assert classes <= set(adjourn.__all__)
    drawn = errors.__doc__ or ""
    assert [n for n in sorted(classes) if n not in drawn] == []


def test_importing_adjourn_imports_nothing_optional() -> None:
    code = f"import sys, adjourn; print([m for m in {OPTIONAL!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(adjourn.__file__).parent / "py.typed").exists()


def test_no_source_file_is_past_500_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "src").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 500
    }
    assert long == {}

"""Every Python block of the README and the docs is a whole program: it runs as it is, and prints what stands below it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One program. `output` is the text block that directly follows it, None where there is none."""

    where: str
    code: str
    output: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    found: list[Block] = []
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        if fence[1] != "python":
            continue
        shown = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(f"{page.relative_to(ROOT)}:{line}", fence[2], after[2] if after and shown else None))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.where)
def test_a_block_of_the_docs_runs_as_it_is(block: Block, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(block.code, encoding="utf-8")
    command = [sys.executable, "-W", "error", program.name]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, f"{block.where}\n{done.stdout}{done.stderr}"
    assert done.stderr == "", block.where
    if block.output is not None:
        assert done.stdout == block.output, block.where


def test_every_block_says_what_it_is_written_in() -> None:
    bare = [p.name for p in PAGES for fence in FENCE.finditer(p.read_text(encoding="utf-8")) if not fence[1]]
    assert bare == []


def test_the_docs_have_programs_in_them() -> None:
    assert len(BLOCKS) > 20
    assert sum(b.output is not None for b in BLOCKS) > len(BLOCKS) / 2

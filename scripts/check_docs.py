"""Check what tests of the code blocks cannot see: links and anchors lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?[^)\n]*\)")
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The ids that GitHub gives to a page's headings."""
    found: set[str] = set()
    for title in HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = 0
        while (name := slug if not count else f"{slug}-{count}") in found:
            count += 1
        found.add(name)
    return found


def main() -> int:
    pages = [page for page in sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")) if page.is_file()]
    problems: list[str] = []
    linked: set[Path] = {ROOT / "README.md"}
    for page in pages:
        for target in LINK.findall(prose(page)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            linked.add(path)
            if not path.exists():
                problems.append(f"{page.relative_to(ROOT)}: {target} does not exist")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                problems.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    unreachable = [page for page in pages if page.is_relative_to(ROOT / "docs") and page not in linked]
    problems += [f"{page.relative_to(ROOT)}: no page links here" for page in unreachable]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

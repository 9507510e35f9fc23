"""Is this tree ready to be released under a tag? Names what does not agree, and ends with 1.

    python tools/check_release.py v0.2.0

The version is in src/llm_perf_opt/version.py, where the build takes it from.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """What is not as a release needs it."""
    version = _found(root / "src" / "llm_perf_opt" / "version.py", r'__version__ = "(.+)"')
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and src/llm_perf_opt/version.py says {version}")
    if _found(root / "CITATION.cff", r"^version: (.+)$") != version:
        found.append(f"CITATION.cff has another version than {version}")
    if not _found(root / "CHANGELOG.md", rf"^## ({re.escape(version)})\b"):
        found.append(f"CHANGELOG.md has no section {version}")
    return found


def _found(file: Path, pattern: str) -> str:
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wrong = problems(sys.argv[1])
    sys.exit("\n".join(wrong) if wrong else 0)

"""What the site shows that does not lie in `docs/`: the README, how to contribute, and the measured results.

They are taken as they are when the site is built, so that nothing is told twice and nothing goes stale; only
their links are turned to where the pages are on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

# Links as written in the repository, and as they are on the site.
_LINKS = (
    (re.compile(r"\]\((?:\.\./)?benchmarks/results/([\w.-]+\.md)"), r"](results/\1"),
    (re.compile(r"\]\((?:\.\./)?CONTRIBUTING\.md"), r"](contributing.md"),
    (re.compile(r"\]\((?:\.\./)?SECURITY\.md"), r"](security.md"),
    (re.compile(r"\]\((?:\.\./)?README\.md"), r"](index.md"),
    (re.compile(r"\]\(docs/"), r"]("),
    # A file of the repository that is no page: named, not linked.
    (re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)"), r"\1 (`\2`)"),
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere in the repository."""
    pages = {"index.md": ROOT / "README.md"}
    pages |= {f"{path.stem.lower()}.md": path for path in (ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")}
    pages |= {f"results/{path.name}": path for path in sorted(RESULTS.glob("*.md"))}
    for name, path in pages.items():
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    return files


def formats_list() -> str:
    """The values of `--format`, from the registry of renderers."""
    from llm_perf_opt.report.renderers import FORMATS, renderer

    return "\n".join(f"- `{name}`: {renderer(name).what}" for name in FORMATS)


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = markdown.replace("<!-- formats -->", formats_list())
    for pattern, target in _LINKS:
        markdown = pattern.sub(target, markdown)
    return markdown

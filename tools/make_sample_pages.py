"""Draws the sample pages under datasets/ from the texts beside them."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.workloads.pages import draw_page

FOLDER = Path(__file__).parents[1] / "datasets" / "omnidocbench" / "images"


def main() -> None:
    for text in sorted(FOLDER.glob("*.txt")):
        page = text.with_suffix(".png")
        # Sixteen greys are enough for black text, and make small files.
        draw_page(text.read_text(encoding="utf-8")).convert("L").quantize(16).save(page, optimize=True)
        print(f"{page.name}: {page.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

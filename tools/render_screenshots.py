"""Renders the pictures of the documentation: docs/images, from the recording that ships and those of the gallery.

    python tools/render_screenshots.py

To be run, and looked at, when the page has changed. Needs Chromium (tools/install_chromium.sh).
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from gallery import PAGES, build_pages
from PIL import Image
from playwright.sync_api import sync_playwright

from llm_perf_opt.cli.main import main

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Picture, theme, window, and the section that stands at its top.
PICTURES = (("report.png", "light", (1180, 800), "answer"), ("report-page.png", "dark", (1180, 1000), "regions"))


def browser() -> str:
    found = os.environ.get("LLM_PERF_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit("There is no Chromium: sh tools/install_chromium.sh")
    return found


def save_small(picture: bytes, path: Path) -> None:
    """As a PNG of 64 colours: a third of the bytes, and nothing that a reader would miss."""
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def render(page: Path, pictures: tuple[tuple[str, str, tuple[int, int], str], ...]) -> None:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox", "--disable-gpu"])
        for name, theme, (width, height), section in pictures:
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            window = context.new_page()
            window.goto(page.as_uri())
            window.wait_for_function("document.documentElement.dataset.ready")
            if section != "answer":
                window.locator(f"#{section}").evaluate("(part) => part.scrollIntoView()")
            save_small(window.screenshot(), IMAGES / name)
        chromium.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(["demo", "--quiet", "--out", folder])
        render(Path(folder) / "report.html", PICTURES)
        build_pages(Path(folder) / "gallery")
        for number, (name, (_, section)) in enumerate(PAGES.items()):
            picture = (f"gallery-{name}.png", "dark" if number % 2 else "light", (1180, 720), section)
            render(Path(folder) / "gallery" / f"{name}.html", (picture,))

"""How large is report.html, how long does it take to write, and how soon does a browser show it?

Two recordings of at least 100,000 kernels: a real one repeated (make_timeline.py), and the worst that can
reasonably be met, 1,000 requests with 20,000 kernels of long names. Each page is opened from disk in a fresh
Chromium several times; the median counts. The results go to benchmarks/results.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import commit

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
KERNELS = 100_000
ROUNDS = 5
LIMIT_BYTES, LIMIT_PAINT_MS = 8_000_000, 1_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

MEASURE = """() => ({
    paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null,
    load: performance.timing.loadEventEnd - performance.timing.navigationStart,
    elements: document.querySelectorAll('*').length,
})"""


def decoder_timeline(folder: Path) -> Path:
    from make_timeline import SOURCE, make

    path = folder / "decoder.sqlite"
    make(SOURCE, path, kernels=KERNELS)
    return path


def worst_timeline(folder: Path) -> Path:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from synthetic import make_export

    ranges = [(f"layer {i}", 1000 * i, 1000 * i + 999) for i in range(KERNELS // 100)]
    kernels = ((f"kernel_{i % 20_000}_{'x' * 300}", 10 * i + 1, 10 * i + 2, 10 * i + 7) for i in range(KERNELS))
    return make_export(folder / "worst.sqlite", ranges, kernels)


def written(recording: Path, out: Path) -> tuple[Path, float]:
    """The page of a recording, and the seconds it took to write once the report was there."""
    from llm_perf_opt.analysis.build import ReportOptions, build_report
    from llm_perf_opt.readers.open import read_recording
    from llm_perf_opt.report.html import render_html
    from llm_perf_opt.report.view import view_of

    report = build_report([read_recording(recording)], ReportOptions(launch_detail=True))
    began = time.perf_counter()
    page = render_html(view_of(report))
    seconds = time.perf_counter() - began
    out.write_text(page, encoding="utf-8")
    return out, seconds


def opened(page: Path, chromium: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    rounds = []
    for _ in range(ROUNDS):
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=list(FLAGS))
            tab = browser.new_page(viewport={"width": 1440, "height": 900})
            tab.goto(page.as_uri())
            tab.locator("html[data-ready]").wait_for(state="attached")
            while not tab.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
                tab.wait_for_timeout(10)
            rounds.append(tab.evaluate(MEASURE))
            browser.close()
    return {
        "first_paint_ms": round(statistics.median(r["paint"] for r in rounds), 0),
        "charts_drawn_ms": round(statistics.median(r["load"] for r in rounds), 0),
        "elements": rounds[0]["elements"],
    }


def main() -> int:
    chromium = os.environ.get("LLM_PERF_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("bench_html: there is no Chromium; tools/install_chromium.sh says how to get one", file=sys.stderr)
        return 1
    results: dict[str, Any] = {
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "rounds": ROUNDS,
        "pages": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, make in (("decoder, repeated", decoder_timeline), ("worst case", worst_timeline)):
            page, seconds = written(make(folder), folder / "report.html")
            size = page.stat().st_size
            results["pages"][title] = {"bytes": size, "written_s": round(seconds, 2), **opened(page, chromium)}
            print(title, results["pages"][title], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "html-page.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "html-page.md").write_text(as_markdown(results), encoding="utf-8")
    ok = all(p["bytes"] < LIMIT_BYTES and p["first_paint_ms"] < LIMIT_PAINT_MS for p in results["pages"].values())
    return 0 if ok else 1


def as_markdown(results: dict[str, Any]) -> str:
    lines = [
        "# `report.html` of 100,000 kernels",
        "",
        f"Median of {results['rounds']} openings in a fresh headless Chromium, {results['machine']['cpus']} CPU cores, "
        f"{results['made']}. Limits: 8 MB, first paint within 1 s. Made by `benchmarks/bench_html.py`.",
        "",
        "| recording | size | written in | first paint | all charts drawn | elements |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for title, p in results["pages"].items():
        lines.append(
            f"| {title} | {p['bytes'] / 1e6:.2f} MB | {p['written_s']:.1f} s | {p['first_paint_ms']:.0f} ms "
            f"| {p['charts_drawn_ms']:.0f} ms | {p['elements']:,} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

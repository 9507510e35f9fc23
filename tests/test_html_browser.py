"""`report.html` in a real Chromium: nothing is requested, nothing fails, charts and selection show the right things."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pytest
from attrs import evolve

from conftest import recording
from conftest import report as build
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.report.html import render_html as render_view
from llm_perf_opt.report.view import view_of
from performance import evaluate
from synthetic import make_export
from test_rank_steps import GEMM, report_of

report = partial(build, launch_detail=True)  # a page draws launches


def render_html(found: NCUProfileRegionReport) -> str:
    return render_view(view_of(found))


sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")

pytestmark = [pytest.mark.browser, pytest.mark.process]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")
SCRIPT = "<script>alert(1)</script>"


def chromium() -> str:
    found = os.environ.get("LLM_PERF_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium: tools/install_chromium.sh says how to get one")
    return found


class Opened:
    """A page in a browser, and all it complained about or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.text_content())

    def box(self, name: str) -> Any:
        """A box of the regions, by its label."""
        return self.page.locator(f'#icicle .node[aria-label^="{name}:"]').first

    def quiet(self) -> bool:
        return not self.complaints and all(url.startswith("file:") for url in self.requests)


class Browser:
    def __init__(self, playwright: Any, folder: Path) -> None:
        self._chromium = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(FLAGS))
        self._folder = folder
        self._number = 0
        self._contexts: list[Any] = []

    def open(self, html: str, *, hash: str = "", stays: bool = False, **options: Any) -> Opened:
        """`stays`: not closed with the test that opened it."""
        self._number += 1
        path = self._folder / f"page{self._number}.html"
        path.write_text(html, encoding="utf-8", errors="backslashreplace")
        settings = {"viewport": {"width": 1440, "height": 900}} | options
        context = self._chromium.new_context(**settings)
        if not stays:
            self._contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(path.as_uri() + hash)
        if options.get("java_script_enabled", True):
            # Not `wait_for_function`: where it has to ask twice, the page's own rules forbid what it does.
            opened.page.locator("html[data-ready]").wait_for(state="attached")
        return opened

    def close_pages(self) -> None:
        """Pages that stay open go on working, and slow down the others."""
        while self._contexts:
            self._contexts.pop().close()

    def close(self) -> None:
        self._chromium.close()


@pytest.fixture(scope="module")
def chromium_itself(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium()
    with sync_api.sync_playwright() as playwright:
        found = Browser(playwright, tmp_path_factory.mktemp("pages"))
        yield found
        found.close()


@pytest.fixture
def browser(chromium_itself: Browser) -> Iterator[Browser]:
    yield chromium_itself
    chromium_itself.close_pages()


@pytest.fixture(scope="module")
def decoder() -> NCUProfileRegionReport:
    return evaluate(report(*DECODER))


@pytest.fixture(scope="module")
def html(decoder: NCUProfileRegionReport) -> str:
    return render_html(decoder)


def regions_of(found: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    assert found.main_scope
    return found.main_scope.regions


@pytest.fixture(scope="module")
def untouched(chromium_itself: Browser, html: str) -> Opened:
    """The page as it is opened, for all tests that only look at it."""
    return chromium_itself.open(html, stays=True)


def region(found: NCUProfileRegionReport, ending: str) -> NCUProfileRegion:
    return next(r for r in regions_of(found) if r.key.endswith(ending))


# -- nothing fails, nothing is fetched -------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_quiet_and_looks_like_a_page(browser: Browser, html: str, theme: str, tmp_path: Path) -> None:
    opened = browser.open(html, color_scheme=theme)
    picture = tmp_path / "page.png"
    opened.page.screenshot(path=picture, full_page=True)
    assert opened.quiet(), opened.complaints
    assert len(opened.requests) == 1
    assert picture.stat().st_size > 100_000  # a blank page is a tenth of that
    luminance = opened.page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    )
    assert (sum(luminance) / 3 > 128) == (theme == "light")


@pytest.mark.parametrize(
    "sizes", [((800, 1000), (1024, 768)), ((1280, 800), (1440, 900)), ((2560, 1000), (1920, 1000))]
)
def test_a_page_fits_its_window(browser: Browser, html: str, sizes: tuple[tuple[int, int], ...]) -> None:
    """The one it is opened in, and what that is made then."""
    opened = browser.open(html, viewport=dict(zip(("width", "height"), sizes[0], strict=True)))
    for width, height in sizes:
        opened.page.set_viewport_size({"width": width, "height": height})
        fits_its_window(opened, width, height)


def test_a_phone_breaks_no_name_letter_by_letter_and_cuts_no_sentence(browser: Browser, html: str) -> None:
    page = browser.open(html, viewport={"width": 400, "height": 900}).page
    page.locator("#regions details.table > summary").first.click()
    lines = page.evaluate(
        "[...document.querySelectorAll('#regions td.text code')].filter((c) => c.textContent.length < 14)"
        ".map((c) => c.getClientRects().length)"
    )
    assert lines
    assert max(lines) == 1
    assert page.evaluate(
        "[...document.querySelectorAll('#opportunities .panel, #opportunities td')]"
        ".every((c) => c.scrollWidth <= c.clientWidth + 1)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def fits_its_window(opened: Opened, width: int, height: int) -> None:
    if width in (1024, 1280, 1440):
        # The answer and the stages are on the first screen.
        for selector in (".headline dd", ".card .verdict", ".card .meter"):
            box = opened.page.locator(selector).last.bounding_box()
            assert box["y"] + box["height"] < height
        # On a narrow laptop, too, one can go to any part of the page.
        assert opened.page.locator('nav a[href="#regions"]').is_visible()
    # Nothing is wider than the window.
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    # And no text of a card or of a chosen region sticks out.
    opened.page.locator(".card h3 button").first.click()
    assert opened.page.evaluate(
        "[...document.querySelectorAll('.card, #about-region > div')].every((c) => c.scrollWidth <= c.clientWidth + 1)"
    )


LONG = "a_stage_with_a_very_long_name_" * 8
LONG_KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4," + "at::native::Functor<c10::BFloat16>," * 12 + "int>(int)"
)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Names without a place to break a line, in every part of a page."""
    ranges = [(LONG, 0, 900_000), (LONG + "inside", 1000, 800_000), ("x" * 300, 2000, 700_000)]
    kernels = [(LONG_KERNEL if i % 2 else "k" * 300, 3000 + i, 3100 + 9000 * i, 9000 + 9000 * i) for i in range(40)]
    source = make_export(tmp_path_factory.mktemp("long") / f"{'recording' * 12}.sqlite", ranges, kernels)
    return render_html(evaluate(report(source)))


# What reaches over the right edge, unless something around it can be scrolled.
OVERFLOWING = """() => [...document.querySelectorAll('body *')].filter((e) => {
    if (e.closest('svg') && e.tagName !== 'svg') return false;
    if (e.closest('.skip') || e.getBoundingClientRect().right <= innerWidth + 1) return false;
    for (let up = e.parentElement; up; up = up.parentElement)
        if (getComputedStyle(up).overflowX !== 'visible') return false;
    return true;
}).map((e) => `${e.tagName}.${e.className.baseVal ?? e.className}#${e.id}`)"""


@pytest.mark.parametrize("page", ["html", "long_names"])
def test_long_names_do_not_widen_a_narrow_page(browser: Browser, page: str, request: pytest.FixtureRequest) -> None:
    opened = browser.open(request.getfixturevalue(page), viewport={"width": 400, "height": 800})

    def fits_every_width() -> None:
        for width in (400, 600, 770, 900):
            opened.page.set_viewport_size({"width": width, "height": 800})
            wider = int(opened.page.evaluate("document.documentElement.scrollWidth")) - width
            assert (wider <= 0, opened.page.evaluate(OVERFLOWING)) == (True, []), width
        opened.page.set_viewport_size({"width": 400, "height": 800})

    fits_every_width()
    # A chosen region, whole names of kernels, and everything that can be unfolded.
    opened.page.locator("#icicle .node").last.click()
    if opened.count('[data-names="full"]'):
        opened.page.locator('[data-names="full"]').click()
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    fits_every_width()
    assert opened.quiet(), opened.complaints


def test_words_are_explained_where_they_are_met(browser: Browser, html: str) -> None:
    opened = browser.open(html)
    words = opened.page.locator(".glossary dl")
    assert not words.is_visible()
    opened.page.locator(".glossary summary").click()
    assert words.is_visible()
    assert "launch-bound" in opened.text(".glossary dl")


def test_a_run_without_a_gpu_shows_times_and_no_empty_chart(browser: Browser, tmp_path: Path) -> None:
    ranges = [("generate", 0, 10_000), ("prefill", 1000, 3000), ("decode", 3000, 9000)]
    source = make_export(tmp_path / "run.sqlite", ranges, [])
    opened = browser.open(render_html(report(source)))
    assert opened.quiet(), opened.complaints
    assert opened.count("#icicle .node") == 3
    for section in ("timeline", "roofline", "kernels", "trust", "opportunities"):
        assert opened.count(f"#{section}") == 0
        assert opened.count(f'nav a[href="#{section}"]') == 0
    opened.box("decode").click()
    assert opened.text("#chip-name") == "generate/decode"
    assert "6.00 µs" in opened.text("#about-region")
    assert "GPU" not in opened.text("#about-region")
    assert opened.quiet(), opened.complaints


def test_a_hostile_name_stays_text(browser: Browser, tmp_path: Path) -> None:
    ranges = [(SCRIPT, 0, 9000), ('"><img src=x onerror=alert(1)>', 1000, 8000), ("</script><!--", 2000, 7000)]
    kernels = [(SCRIPT, 3000 + i, 3100 + 100 * i, 3150 + 100 * i) for i in range(20)]
    kernels += [("\u2028</style>\u202e{{7*7}}", 6000, 6100, 6200)]
    opened = browser.open(render_html(evaluate(report(make_export(tmp_path / "run.sqlite", ranges, kernels)))))
    opened.box(SCRIPT).click()
    opened.page.locator('[data-names="full"]').click()
    opened.page.mouse.move(0, 0)
    assert opened.text("#chip-name") == SCRIPT
    assert SCRIPT in opened.text("#kernel-table tbody")
    assert SCRIPT in opened.text(".card h3")
    assert opened.count("script") == 2
    assert opened.count("img") == 0
    assert opened.quiet(), opened.complaints


def test_what_to_fix_can_be_read_on_a_phone(browser: Browser, html: str) -> None:
    opened = browser.open(html, viewport={"width": 400, "height": 800})
    cells = opened.page.locator("#opportunities tbody tr").first.locator("td.text").all()
    assert len(cells) == 3
    for cell in cells:  # below each other, each as wide as there is room
        assert cell.bounding_box()["width"] > 300
        assert cell.bounding_box()["x"] >= 0


def test_without_a_script_the_answer_is_there(browser: Browser, html: str, decoder: NCUProfileRegionReport) -> None:
    opened = browser.open(html, java_script_enabled=False)
    assert opened.page.locator(".headline dd").first.is_visible()
    assert opened.count(".card") == len(decoder.stages)
    assert opened.page.locator("#diagnostics").is_visible()
    assert opened.page.locator("#kernels .no-js table tr").nth(1).is_visible()
    assert not opened.page.locator("#timeline").is_visible()  # no empty chart


# -- marks ---------------------------------------------------------------------------------------------


def test_every_region_is_a_box_or_counted(browser: Browser, html: str, decoder: NCUProfileRegionReport) -> None:
    opened = browser.open(html)
    timed = [r for r in regions_of(decoder) if r.wall_ns]
    narrow = re.search(r"(\d+) box", opened.text("#icicle-note"))
    assert opened.count("#icicle .node") + int(narrow[1] if narrow else 0) == len(timed)
    opened.page.locator('[data-measure="gpu"]').click()
    working = [r for r in regions_of(decoder) if r.inclusive.gpu_time_ns]
    narrow = re.search(r"(\d+) box", opened.text("#icicle-note"))
    outside = 1  # one box for what is in no range
    assert opened.count("#icicle .node") + int(narrow[1] if narrow else 0) == len(working) + outside


def test_boxes_are_as_wide_as_their_time(untouched: Opened, decoder: NCUProfileRegionReport) -> None:
    outer = [r for r in regions_of(decoder) if r.parent is None]
    widths = {r.name: float(untouched.box(f"LLM@{r.name}").locator("rect").get_attribute("width")) for r in outer}
    whole = sum(r.wall_ns or 0 for r in outer)
    for r in outer:
        assert widths[r.name] / sum(widths.values()) == pytest.approx((r.wall_ns or 0) / whole, rel=0.01)


def test_the_strip_holds_the_launches_of_one_instance(
    browser: Browser, html: str, decoder: NCUProfileRegionReport
) -> None:
    opened = browser.open(html, hash="#region=LLM%40decode")
    decode = region(decoder, "@decode")
    assert decode.instances == 1
    values = decode.inclusive
    assert (
        int(opened.page.locator("#strip").get_attribute("data-launches")) == values.kernel_count + values.memory.count
    )
    busy = (decode.wall_ns or 0) - (decode.gpu_idle_ns or 0)
    share = 100 * busy / (decode.wall_ns or 1)
    told = re.search(r"\(([\d.]+) %\)", opened.text("#gaps"))
    assert told
    assert float(told[1]) == pytest.approx(share, abs=0.1)
    drawn = opened.page.evaluate(
        """() => { const c = document.getElementById('strip');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(`${d[i]},${d[i+1]},${d[i+2]}`); return seen.size; }"""
    )
    assert drawn > 8  # families, ranges, text: not an empty canvas


def test_the_roofline_has_a_dot_for_every_kernel_that_computes(
    browser: Browser, html: str, decoder: NCUProfileRegionReport
) -> None:
    opened = browser.open(html)
    stages = [region(decoder, key) for key in decoder.stages]
    points = [p for r in stages if r.performance for p in r.performance.signatures]
    assert opened.count("#roofline-chart .dot") == sum(1 for p in points if p.intensity)
    assert opened.count("#memory-chart .dot") == len(points)
    assert opened.count("#roofline-chart .roof") == 2  # bf16 alone is worked against: by data sheet, and measured
    opened.page.locator("#roofline-stages button").first.click()
    assert opened.count("#memory-chart .dot") < len(points)
    opened.page.locator("#roofline-chart .dot").last.hover()  # the smallest is on top
    for text in ("family", "FLOP/s", "DRAM rate", "intensity", "grid 132×1×1"):
        assert text in opened.text("#tip")


def test_the_kernel_table_and_the_families_are_complete(untouched: Opened, decoder: NCUProfileRegionReport) -> None:
    assert decoder.main_scope
    kernels = decoder.main_scope.kernels
    assert untouched.count("#kernel-table tbody tr") == len(kernels)
    assert untouched.count("#family-bar rect") == len({k.family for k in kernels})
    assert untouched.count("#kernel-table .spark") == len(kernels)


# -- selection -----------------------------------------------------------------------------------------


def test_choosing_a_region_filters_everything(browser: Browser, html: str, decoder: NCUProfileRegionReport) -> None:
    opened = browser.open(html)
    opened.box("decode_step").click()
    step = region(decoder, "decode_step")
    assert opened.text("#chip-name").endswith("decode_step")
    assert opened.count("#kernel-table tbody tr") == len(step.kernels)
    assert step.performance
    assert opened.count("#memory-chart .dot") == len(step.performance.signatures)
    assert opened.count("#instance option") == step.instances
    assert "decode_step" in opened.text("#strip-what")
    assert "decode_step" in opened.text("#kernels-what")
    assert unquote_plus(opened.page.url).endswith(f"#region={step.key}")
    opened.page.locator("#clear").click()
    assert "#" not in opened.page.url
    assert opened.page.locator("#chip").is_hidden()


def test_a_card_selects_its_stage_and_an_address_opens_it(browser: Browser, html: str) -> None:
    opened = browser.open(html)
    opened.page.locator(".card h3 button").first.click()
    assert opened.count(".card.selected") == 1
    again = browser.open(html, hash="#" + opened.page.url.split("#", 1)[1])
    assert again.count(".card.selected") == 1
    assert again.text("#chip-name") == opened.text("#chip-name")


def test_a_family_alone(browser: Browser, html: str, decoder: NCUProfileRegionReport) -> None:
    opened = browser.open(html)
    assert decoder.main_scope
    opened.page.locator("#families button", has_text="gemm").click()
    wanted = [k for k in decoder.main_scope.kernels if k.family == "gemm"]
    assert opened.count("#kernel-table tbody tr") == len(wanted)
    opened.page.keyboard.press("Escape")
    assert opened.count("#kernel-table tbody tr") == len(decoder.main_scope.kernels)


def test_sorting_and_searching(browser: Browser, html: str, decoder: NCUProfileRegionReport) -> None:
    opened = browser.open(html)
    assert decoder.main_scope
    kernels = decoder.main_scope.kernels
    opened.page.locator("#kernel-table th button", has_text="calls").click()
    assert opened.page.locator('th[aria-sort="descending"]').text_content() == "calls"
    shown = opened.page.locator("#kernel-table tbody tr td:nth-child(3)").all_text_contents()
    assert [int(text.replace(",", "")) for text in shown] == sorted((k.calls for k in kernels), reverse=True)
    opened.page.locator("#search").fill("NVJET")
    wanted = [k for k in kernels if "nvjet" in k.kernel_name]
    assert 0 < len(wanted) < len(kernels)
    assert opened.count("#kernel-table tbody tr") == len(wanted)
    opened.page.locator("#search").fill("no such kernel")
    assert "No kernel" in opened.text("#kernel-table tbody")


# -- instances ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two slow and 500 steady steps with a library's range in each, and a range that ran once."""
    ms, at = 1_000_000, 0
    ranges, kernels = [], []
    for number in range(502):
        length = (900, 300)[number] * ms if number < 2 else 2 * ms + 1000 * (number % 7)
        ranges += [("step", at, at + length), ("cub::DeviceScan", at + 2000, at + 500_000)]
        kernels.append(("scan_kernel", at + 3000, at + 10_000, at + 110_000))
        at += length
    ranges.append(("save", at + ms, at + 5 * ms))
    kernels.append(("copy_kernel", at + ms + 1000, at + ms + 2000, at + 2 * ms))
    return render_html(report(make_export(tmp_path_factory.mktemp("steps") / "run.sqlite", ranges, kernels)))


def test_a_click_in_the_timeline_selects_a_range_or_keeps_what_is_shown(browser: Browser) -> None:
    opened = browser.open(render_html(report(*DECODER)))
    strip = opened.page.locator("#strip")
    said = opened.text("#strip-readout")
    assert opened.page.locator("#zoom-out").is_disabled()
    strip.click(position={"x": 300, "y": 22 + 19 + 9})  # the second row of ranges
    assert opened.text("#strip-what").startswith("LLM@decode/decode_step, instance")
    strip.click(position={"x": 300, "y": 22 + 9})  # the first
    assert opened.text("#strip-what") == "LLM@decode, instance 1 of 1"
    assert opened.text("#strip-readout").startswith("LLM@decode · this instance")
    opened.page.mouse.move(1, 1)
    assert opened.text("#strip-readout") != said
    strip.focus()
    opened.page.keyboard.press("+")
    assert opened.page.locator("#zoom-out").is_enabled()
    assert opened.quiet()


def test_a_strip_of_all_instances_leads_to_the_timeline(browser: Browser, steps: str) -> None:
    opened = browser.open(steps, viewport={"width": 400, "height": 700}, color_scheme="dark")
    page = opened.page
    assert opened.text("#instances-what") == "Instances of step"  # the region that repeats and takes the longest
    assert opened.count("#instance-strip [data-bar]") == 200
    assert opened.count("#instance-strip .warm") == 2
    assert opened.count("#instance-strip .is-kept") == 3
    assert opened.count("#instance-strip .cut") == 2  # a thousand times as long as the others: not drawn in full
    # A click on a bar that is kept shows it, without a word.
    strip = page.locator("#instance-strip")
    at = page.locator('[data-bar="0"] .time').bounding_box()
    strip.click(position={"x": at["x"] + at["width"] / 2 - strip.bounding_box()["x"], "y": 40})
    assert opened.text("#strip-what") == "step, instance 1 of 502"
    assert page.locator("#strip-note").is_hidden()
    assert page.locator("#timeline h2").bounding_box()["y"] < 100
    assert opened.text("#chip-name") == "step"
    # By keyboard to one that is not kept: the nearest of its kind is shown, and the page says so.
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert "warm-up" not in opened.text("#instances-readout")
    page.keyboard.press("Enter")
    assert opened.text("#strip-what") == "step, instance 502 of 502"
    assert "Not kept launch by launch: instances 497 to 499 of 502" in opened.text("#strip-note")
    assert page.evaluate("document.activeElement.dataset.bar") == "198"
    assert int(page.locator("#strip").get_attribute("data-launches")) > 0
    page.locator("#instance").select_option(index=0)
    assert page.locator("#strip-note").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert opened.quiet(), opened.complaints


def test_a_region_says_whose_times_they_are(browser: Browser, steps: str) -> None:
    opened = browser.open(steps, hash="#region=step")
    told = opened.text("#about-region")
    for words in ("2 instances · 1.20 s", "500 instances · median 2.00 ms", "Of the profiled run", "does not say why"):
        assert words in told
    opened.page.keyboard.press("Escape")
    opened.box("save").dispatch_event("click")  # narrow
    assert "One instance: it may be warm-up." in opened.text("#about-region")
    assert opened.page.locator("#instances").is_hidden()


def test_undisturbed_times_say_so(browser: Browser, decoder: NCUProfileRegionReport) -> None:
    assert decoder.main_scope
    step = region(decoder, "decode_step")
    assert step.timing
    timing = evolve(step.timing, source="undisturbed", profiled_median_ns=15_700_000, disturbance=1.35)
    regions = [evolve(r, timing=timing) if r is step else r for r in regions_of(decoder)]
    found = evolve(decoder, scopes=[evolve(decoder.main_scope, regions=regions)])
    opened = browser.open(render_html(found), hash=f"#region={quote_plus(step.key)}")
    for words in ("15.7 ms · 1.35×", "Undisturbed: the median was taken without a profiler.", "of the profiled run"):
        assert words in opened.text("#about-region")
    assert opened.count("#instance-strip [data-bar]") == 8


def test_ranges_of_libraries_are_folded_until_asked_for(browser: Browser, steps: str) -> None:
    opened = browser.open(steps)
    assert opened.count("#icicle .node") == 2
    button = opened.page.locator("#libraries")
    assert button.text_content() == "show 1 library range"
    button.click()
    assert opened.count("#icicle .node") == 3
    # Where one is asked for by its name, it is there.
    again = browser.open(steps, hash="#region=step%2Fcub%3A%3ADeviceScan")
    assert again.count("#icicle .node.selected") == 1
    assert [*opened.complaints, *again.complaints] == []


def test_cards_and_kernels_lead_to_the_timeline(browser: Browser, steps: str) -> None:
    opened = browser.open(steps)
    top = "document.getElementById('timeline').getBoundingClientRect().top"
    opened.page.locator(".card h3 button").first.click()
    assert 0 <= opened.page.evaluate(top) < 120
    assert re.fullmatch(r"step, instance (?!1 |502 )\d+ of 502", opened.text("#strip-what"))  # a typical steady one
    opened.page.keyboard.press("Escape")
    opened.page.locator("#kernel-table button", has_text="copy_kernel").click()
    assert opened.text("#strip-what") == "save, instance 1 of 1"
    assert "copy_kernel" in opened.text("#strip-readout")
    assert 0 <= opened.page.evaluate(top) < 120
    assert opened.quiet(), opened.complaints


def test_kernels_of_the_whole_recording_lead_to_the_timeline_too(browser: Browser, tmp_path: Path) -> None:
    """It stands beside the ranges that hold little of it, and holds their launches all the same."""
    ranges = [("aten::mm", 100_000 * i, 100_000 * i + 90_000) for i in range(5)]
    kernels = [("mm_kernel", 100_000 * i + 5000, 100_000 * i + 10_000, 100_000 * i + 90_000) for i in range(5)]
    opened = browser.open(render_html(report(make_export(tmp_path / "run.sqlite", ranges, kernels))))
    opened.page.locator(".card h3 button").first.click()
    assert opened.text("#strip-what") == "whole recording, instance 1 of 1"
    opened.page.locator("#kernel-table button", has_text="mm_kernel").click()
    assert "mm_kernel" in opened.text("#strip-readout")
    assert opened.page.locator("#strip-note").is_hidden()
    assert opened.quiet(), opened.complaints


def test_where_the_host_runs_ahead_all_parts_of_the_page_speak_of_the_work(browser: Browser, tmp_path: Path) -> None:
    """Ranges of 10 µs whose work takes 1 ms: no part of the page says that a step takes 10 µs."""
    ranges = [("step[DECODE bs=8]", 20_000 * i, 20_000 * i + 10_000) for i in range(5)]
    kernels = [("k", 20_000 * i + 5000, 200_000 + 1_100_000 * i, 1_200_000 + 1_100_000 * i) for i in range(5)]
    opened = browser.open(render_html(report(make_export(tmp_path / "run.sqlite", ranges, kernels))))
    assert "one every 1.1 ms" in opened.text(".headline")
    row = opened.text("#steps tbody tr")
    assert "1.1 ms" in row
    assert "10 µs" not in row
    opened.page.locator(".card h3 button").first.click()
    assert "GPU busy 1.00 ms of 1.00 ms" in opened.text("#gaps")
    assert "runs ahead of the GPU" in opened.text("#instances-note")
    assert opened.quiet(), opened.complaints


def test_a_page_begins_with_the_stage_of_its_answer_and_every_fix_leads_to_work(browser: Browser) -> None:
    opened = browser.open(render_html(report(recording("kineto-"))))
    assert opened.text("#strip-what") == "decode, instance 1 of 1"  # prefill has more kernel time
    for number in range(opened.count("[data-select]")):
        opened.page.locator("[data-select]").nth(number).click()
        assert int(opened.page.locator("#strip").get_attribute("data-launches")) > 0
        assert 0 <= opened.page.evaluate("document.getElementById('timeline').getBoundingClientRect().top") < 120
    assert opened.quiet(), opened.complaints


# -- keyboard and themes -------------------------------------------------------------------------------


def test_keyboard(browser: Browser, html: str) -> None:
    opened = browser.open(html)
    page = opened.page
    focused = "document.activeElement.getAttribute('aria-label')?.split(':')[0] ?? document.activeElement.id"
    page.keyboard.press("/")
    assert page.evaluate(focused).lower().startswith("search")
    page.keyboard.type("gemm")
    page.keyboard.press("Escape")
    assert page.locator("#search").input_value() == ""
    page.locator('#icicle [tabindex="0"]').focus()
    first = page.evaluate(focused)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) != first
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "layer0"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert opened.text("#chip-name").endswith("decode_step")
    assert page.evaluate("document.activeElement.closest('#icicle') !== null")  # focus is not lost by redrawing
    page.keyboard.press("Escape")
    assert page.locator("#chip").is_hidden()
    page.locator("#strip").focus()
    page.keyboard.press("n")
    assert "kernel" in opened.text("#strip-readout")
    assert opened.quiet(), opened.complaints


def test_everything_interactive_has_a_name_and_a_visible_focus(browser: Browser, html: str) -> None:
    opened = browser.open(html)
    nameless = opened.page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, canvas, [tabindex="0"]')].filter((e) =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Tab")
    outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline != "0px"


def test_the_theme_can_be_chosen(browser: Browser, html: str) -> None:
    opened = browser.open(html, color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    before = opened.page.evaluate(colour)
    opened.page.locator("#theme").click()
    assert opened.page.evaluate(colour) != before
    opened.page.locator("#theme").click()
    assert opened.page.evaluate(colour) == before


def test_it_prints(browser: Browser, html: str) -> None:
    opened = browser.open(html, viewport={"width": 794, "height": 1123}, color_scheme="dark")
    printed = opened.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 794
    assert opened.page.locator(".glossary dl").is_visible()  # what is closed on the screen is read on paper
    name = opened.page.locator("#kernel-table td.name").first
    assert name.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")  # whole names
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.locator(".glossary[open]").count() == 0
    assert opened.quiet(), opened.complaints


def test_many_kernels_are_in_the_page_only_as_they_are_seen(browser: Browser, tmp_path: Path) -> None:
    kernels = [(f"kernel_number_{i:05}", 10 * i + 1, 10 * i + 2, 10 * i + 9) for i in range(3000)]
    opened = browser.open(render_html(report(make_export(tmp_path / "run.sqlite", [("all", 0, 40_000)], kernels))))
    assert 20 < opened.count("#kernel-table tbody tr[data-row]") < 120
    assert opened.page.locator("#kernel-table").get_attribute("aria-rowcount") == "3001"
    opened.page.locator("#kernel-scroll").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    opened.page.locator("#kernel-table tr[data-row][aria-rowindex='3001']").wait_for(state="attached")
    assert opened.page.locator("#kernel-table tr[data-row]").last.get_attribute("aria-rowindex") == "3001"
    # On paper: the first ones, and no empty pages for the others.
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.count("#kernel-table tbody tr[data-row]") == 200
    assert opened.count("#kernel-table td.pad") == 0
    assert "2,800 more kernels" in opened.text("#kernel-table tbody tr:last-child")
    assert opened.quiet(), opened.complaints


@pytest.mark.parametrize(
    "name",
    ["nsys-*-ranks.sqlite", "nsys-*-graph_whole.sqlite", "nsys-*-train.sqlite", "ncu-*-names.ncu-rep", "kineto-"],
)
def test_recordings_of_every_kind(browser: Browser, name: str) -> None:
    opened = browser.open(render_html(report(recording(name))))
    for number in range(min(opened.count("#icicle .node"), 4)):
        opened.page.locator("#icicle .node").nth(number).dispatch_event("click")
        opened.page.keyboard.press("Escape")
    assert opened.quiet(), opened.complaints


# -- ranks of a job --------------------------------------------------------------------------------


def test_the_matrix_of_ranks_shows_waiting_and_marks_the_rank_that_is_clicked(browser: Browser) -> None:
    found = report_of(lambda rank, step: [(GEMM, 0, 3_000_000 if rank == 1 else 1_000_000)])
    opened = browser.open(render_html(found), hash="#ranks")
    opened.page.click('[data-rank-measure="waiting"]')
    assert opened.text("#rank-scale").startswith("0 ns (faint) to 2.00 ms (strong)")  # two of three wait for the third
    chart = opened.page.locator("#rank-matrix")
    box = chart.bounding_box()
    chart.click(position={"x": box["width"] / 2, "y": box["height"] * 0.5})
    assert opened.text("#rank-table tr.selected td") == "1"
    assert opened.text("#rank-story").startswith("rank 1: the same number of kernels take 2 ms longer")
    chart.click(position={"x": box["width"] / 2, "y": box["height"] * 0.1})
    assert opened.text("#rank-story").strip() == "rank 0: nothing that the others do not do, too."
    assert opened.quiet(), opened.complaints

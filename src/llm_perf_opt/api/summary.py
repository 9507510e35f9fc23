"""What the Python API takes from the renderers: the three lines of the answer, Jupyter's summary, the page.

All that the API needs of `report/` beside its tables is imported here, and nowhere else in `api/result.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

from llm_perf_opt.report.answer import answer, headline
from llm_perf_opt.report.html import render_html
from llm_perf_opt.report.stages import stage_regions
from llm_perf_opt.report.text import duration, full_label, gpu_time, share
from llm_perf_opt.report.view import view_of

if TYPE_CHECKING:
    from llm_perf_opt.api.result import Report
    from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport

_ROWS = 12
_SUMMARY = """\
<div>
<ul>{% for sentence in answer %}<li>{{ sentence }}</li>{% endfor %}</ul>
<table>
<thead><tr><th>region</th><th>instances</th><th>wall</th><th>GPU idle</th><th>GPU time</th><th>kernels</th>{% if verdicts %}<th>verdict</th>{% endif %}</tr></thead>
<tbody>{% for r in regions %}<tr><td><code>{{ full_label(r) }}</code></td><td>{{ r.instances if r.instances is not none else "–" }}</td><td>{{ duration(r.wall_ns) }}</td><td>{{ share(r.gpu_idle_ns, r.wall_ns) }}</td><td>{{ duration(gpu_time(r.inclusive)) }}</td><td>{{ r.inclusive.kernel_count }}</td>{% if verdicts %}<td>{{ r.performance.verdict.title if r.performance else "–" }}</td>{% endif %}</tr>{% endfor %}</tbody>
</table>
<p>{{ count }} regions in {{ scopes }} scopes. Data frames: <code>.regions</code>, <code>.kernels</code>, <code>.metrics</code>, <code>.launches</code>, <code>.ranges</code>.</p>
</div>"""


def longest_stage(report: NCUProfileRegionReport) -> NCUProfileRegion | None:
    return next(iter(stage_regions(report)), None)


def answer_lines(report: NCUProfileRegionReport) -> dict[str, str]:
    """ "Where", "Why" and "Do first", as every output says them; empty where nothing could be evaluated."""
    return {line.name: line.text for line in headline(report)}


def page_html(report: NCUProfileRegionReport, top: int) -> str:
    """`report.html` as text."""
    return render_html(view_of(report, top=top))


def summary_html(report: Report) -> str:
    """A few kilobytes of HTML, whatever the size of the report."""
    stages = stage_regions(report.data)[:_ROWS]
    sentences = [line for line in str(report.answer).splitlines() if report.answer.where]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_SUMMARY)
    return template.render(
        answer=sentences or answer(report.data)[:3],
        regions=stages,
        verdicts=any(r.performance for r in stages),
        count=len(report.main_scope.regions) if report.main_scope else 0,
        scopes=len(report.scopes),
        full_label=full_label,
        duration=duration,
        share=share,
        gpu_time=gpu_time,
    )

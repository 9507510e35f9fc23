"""What Jupyter shows of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.stages import stage_regions
from llm_perf_opt.report.text import duration, full_label, gpu_time, share

if TYPE_CHECKING:
    from llm_perf_opt.api.result import Report

_ROWS = 12
_SUMMARY = """\
<div>
<ul>{% for name, text in answer %}<li>{{ name }}: {{ text }}</li>{% endfor %}</ul>
<table>
<thead><tr><th>region</th><th>instances</th><th>wall</th><th>GPU idle</th><th>GPU time</th><th>kernels</th>{% if verdicts %}<th>verdict</th>{% endif %}</tr></thead>
<tbody>{% for r in regions %}<tr><td><code>{{ full_label(r) }}</code></td><td>{{ r.instances if r.instances is not none else "–" }}</td><td>{{ duration(r.wall_ns) }}</td><td>{{ share(r.gpu_idle_ns, r.wall_ns) }}</td><td>{{ duration(gpu_time(r.inclusive)) }}</td><td>{{ r.inclusive.kernel_count }}</td>{% if verdicts %}<td>{{ r.performance.verdict.title if r.performance else "–" }}</td>{% endif %}</tr>{% endfor %}</tbody>
</table>
<p>{{ count }} regions in {{ scopes }} scopes. Data frames: <code>.regions</code>, <code>.kernels</code>, <code>.metrics</code>, <code>.launches</code>, <code>.ranges</code>. To look at: <code>.tree</code>, <code>.roofline</code>, <code>.to_html(path)</code>.</p>
</div>"""


def summary_html(report: Report) -> str:
    """A few kilobytes of HTML, whatever the size of the report."""
    stages = stage_regions(report.data)[:_ROWS]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_SUMMARY)
    return template.render(
        answer=report.answer.lines,
        regions=stages,
        verdicts=any(r.performance for r in stages),
        count=len(report.main_scope.regions) if report.main_scope else 0,
        scopes=len(report.scopes),
        full_label=full_label,
        duration=duration,
        share=share,
        gpu_time=gpu_time,
    )


def summary_markdown(report: Report) -> str:
    """The answer and the stages."""
    lines = [f"- **{name}:** {plain(text)}" for name, text in report.answer.lines]
    cells = [
        [
            code(full_label(r)),
            "–" if r.instances is None else f"{r.instances:,}",
            duration(r.wall_ns),
            share(r.gpu_idle_ns, r.wall_ns),
            duration(gpu_time(r.inclusive)),
            f"{r.inclusive.kernel_count:,}",
        ]
        for r in stage_regions(report.data)[:_ROWS]
    ]
    head = ["region", "instances", "wall", "GPU idle", "GPU time", "kernels"]
    return "\n".join([*lines, "", *table(head, cells, numbers=5)])

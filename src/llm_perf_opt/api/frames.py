"""A report in a notebook: `llm_perf_opt.load(run)` with data frames, and a summary where it is shown.

Frames are of pandas or polars, whichever is in use: the one already imported, else the one installed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import jinja2
from attrs import define

from llm_perf_opt.errors import MissingTool
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.answer import answer
from llm_perf_opt.report.tables import Table, kernels_table, metrics_table, regions_table
from llm_perf_opt.report.text import duration, full_label, gpu_time, share, weight

_ROWS = 12
_SUMMARY = """\
<div>
<ul>{% for sentence in answer %}<li>{{ sentence }}</li>{% endfor %}</ul>
<table>
<thead><tr><th>region</th><th>instances</th><th>wall</th><th>GPU idle</th><th>GPU time</th><th>kernels</th>{% if judged %}<th>verdict</th>{% endif %}</tr></thead>
<tbody>{% for r in regions %}<tr><td><code>{{ full_label(r) }}</code></td><td>{{ r.instances if r.instances is not none else "–" }}</td><td>{{ duration(r.wall_ns) }}</td><td>{{ share(r.gpu_idle_ns, r.wall_ns) }}</td><td>{{ duration(gpu_time(r.inclusive)) }}</td><td>{{ r.inclusive.kernel_count }}</td>{% if judged %}<td>{{ r.performance.verdict.title if r.performance else "–" }}</td>{% endif %}</tr>{% endfor %}</tbody>
</table>
<p>{{ count }} regions in {{ scopes }} scopes: <code>.regions</code>, <code>.kernels</code> and <code>.metrics</code> are data frames.</p>
</div>"""


@define
class LoadedReport(NCUProfileRegionReport):
    """A finished report, as data frames and as a table in Jupyter."""

    @property
    def regions(self) -> Any:
        """One row per scope and region."""
        return data_frame(regions_table(self))

    @property
    def kernels(self) -> Any:
        """One row per scope, region, kernel and device; where `region` is missing, the whole scope."""
        return data_frame(kernels_table(self))

    @property
    def metrics(self) -> Any:
        """One row per scope, region and counter."""
        return data_frame(metrics_table(self))

    def _repr_html_(self) -> str:
        scope = self.main_scope
        found = scope.regions if scope else []
        stages = set(self.stages)
        keys = {region.key for region in found}
        outer = [r for r in found if (r.key in stages if stages else r.parent not in keys)]
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_SUMMARY)
        return template.render(
            answer=answer(self)[:3],
            regions=sorted(outer, key=weight, reverse=True)[:_ROWS],
            judged=any(r.performance for r in outer),
            count=len(found),
            scopes=len(self.scopes),
            full_label=full_label,
            duration=duration,
            share=share,
            gpu_time=gpu_time,
        )


def data_frame(table: Table) -> Any:
    """A frame of the library the user works with."""
    for name in sorted(("pandas", "polars"), key=lambda name: name not in sys.modules):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        if name == "polars":
            return library.DataFrame({key: list(values) for key, values in table.items()}, infer_schema_length=None)
        return library.DataFrame(dict(table))
    raise MissingTool("Data frames need pandas or polars, and neither is installed.", "pip install pandas")

"""`report.html`: one file, no network, every name escaped by the template engine."""

from __future__ import annotations

from importlib.resources import files

import jinja2

from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.answer import answer
from llm_perf_opt.report.text import (
    duration,
    full_label,
    gpu_time,
    heaviest,
    idle_share,
    interesting_metrics,
    quantity,
    rows,
    share,
    trust,
    work_count,
)
from llm_perf_opt.version import __version__

_REGIONS = 2000  # rows; the rest is in report.json, and the page says so
_KERNELS = 15  # per region


def render_html(report: NCUProfileRegionReport, top: int = _KERNELS) -> str:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": duration, "visible": visible}
    environment.globals |= {
        "rows": rows,
        "gpu_time": gpu_time,
        "work_count": work_count,
        "full_label": full_label,
        "share": share,
        "idle_share": idle_share,
        "quantity": quantity,
        "trust": trust,
        "interesting_metrics": interesting_metrics,
    }
    source = files("llm_perf_opt.report").joinpath("templates/report.html").read_text(encoding="utf-8")
    scope = report.main_scope
    regions = scope.regions if scope else []
    shown = heaviest(regions, _REGIONS)
    return environment.from_string(source).render(
        report=report,
        scope=scope,
        regions=shown,
        hidden=len(regions) - len(shown),
        answer=answer(report),
        top=top,
        version=__version__,
    )

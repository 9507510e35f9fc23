"""Parts of a report as a notebook shows them: the tree of its regions, and the roofline."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import jinja2
from attrs import define

from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.pictures import pictures
from llm_perf_opt.report.text import duration, gpu_time, heaviest, rows, share
from llm_perf_opt.report.view import view_of

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegionReport

_ROWS = 60
_HEAD = ("region", "instances", "wall", "GPU idle", "GPU time", "kernels", "verdict")
_TREE = """\
<table><thead><tr>{% for name in head %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for indent, cells in lines %}<tr>{% for cell in cells %}<td{% if loop.first %} style="text-align:left;padding-left:{{ 1 + indent }}em"{% endif %}>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table>
{% if more %}<p>{{ more }}</p>{% endif %}"""
_PICTURE = '<img alt="{{ title }}" style="max-width:100%" src="data:image/svg+xml;base64,{{ data }}">'


@define(frozen=True, repr=False)
class Display:
    """One thing in the three forms that a notebook may ask for."""

    text: str
    html: str
    markdown: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html

    def _repr_markdown_(self) -> str:
        return self.markdown


def tree_of(report: NCUProfileRegionReport) -> Display:
    """Regions inside regions, those that take most time."""
    regions = report.main_scope.regions if report.main_scope else []
    chosen = heaviest(regions, _ROWS)
    more = f"{len(regions) - len(chosen):,} smaller regions are not shown." if len(chosen) < len(regions) else ""
    lines = [
        (
            min(indent, 20),
            (
                text,
                "–" if region.instances is None else f"{region.instances:,}",
                duration(region.wall_ns),
                share(region.gpu_idle_ns, region.wall_ns),
                duration(gpu_time(region.inclusive)),
                f"{region.inclusive.kernel_count:,}",
                region.performance.verdict.title if region.performance else "–",
            ),
        )
        for indent, text, region in rows(chosen)
    ]
    shown = [["\u2003" * indent + code(cells[0]), *map(plain, cells[1:])] for indent, cells in lines]
    plain_lines = ["  ".join(("  " * indent + cells[0], *cells[1:])) for indent, cells in lines]
    return Display(
        text="\n".join([*plain_lines, more]).strip(),
        html=_render(_TREE, head=_HEAD, lines=lines, more=more),
        markdown="\n".join([*table(list(_HEAD), shown, numbers=5, notes=1), "", more]).strip(),
    )


def roofline_of(report: NCUProfileRegionReport) -> Display:
    """Kernels against the roofs of the GPU; where there are no counters, what is missing."""
    drawn = next((one for one in pictures(view_of(report)) if one.name == "roofline.svg"), None)
    if drawn is None:
        text = "There is no roofline: it takes counters of Nsight Compute (llm-perf profile), and a GPU that is known."
        return Display(text, _render("<p>{{ text }}</p>", text=text), text)
    # As an image: the style of the picture must not reach the notebook around it.
    data = base64.b64encode(drawn.svg.encode()).decode()
    text = "A roofline, drawn where pictures can be shown; .to_html(path) has it to zoom in."
    html = _render(_PICTURE, title=drawn.title, data=data)
    return Display(text, html, f"![{drawn.title}](data:image/svg+xml;base64,{data})")


def _render(template: str, **values: object) -> str:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(template).render(values)

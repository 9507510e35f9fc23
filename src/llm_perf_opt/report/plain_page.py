"""Pages without a script, as comparisons and trials have them: one file, no network, every name escaped, one look."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.text import duration
from llm_perf_opt.version import __version__

_HERE = "llm_perf_opt.report"


@cache
def plain_page(package: str, name: str) -> jinja2.Template:
    """A template of a package; it extends `plain_page.html`."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(lambda base: _text(_HERE, f"templates/{base}")),
    )
    environment.filters |= {"visible": visible, "duration": duration}
    environment.globals |= {"version": __version__, **_style()}
    return environment.from_string(_text(package, f"templates/{name}"))


def _style() -> dict[str, str]:
    """The style, and what the page's policy calls it; reports look the same."""
    style = _text(_HERE, "assets/report.css") + _text(_HERE, "assets/plain_page.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return {"style": Markup(style), "style_hash": digest}  # noqa: S704  all of it is of this package


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")

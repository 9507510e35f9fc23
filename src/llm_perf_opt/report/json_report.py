"""`report.json`: the model as it is, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from llm_perf_opt.analysis.verdicts.conclusion import conclude
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.regions import model
from llm_perf_opt.report.renderers import File, Renderer
from llm_perf_opt.report.view import View
from llm_perf_opt.untrusted import read_json

if TYPE_CHECKING:
    import cattrs

_LARGEST = 4 << 30  # bytes of a report that is read back
_PRETTY_UP_TO = 5_000  # regions in all scopes; larger reports are for programs and are written compactly


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """Without those that live only while the recording is at hand."""
    if not attrs.has(kind):
        raise TypeError(f"{kind.__name__} has no form in JSON")
    return tuple(f.name for f in attrs.fields(kind) if f.init and f.metadata.get("in_json", True))


def _as_dictionary(value: Any) -> dict[str, Any]:
    """An object of the model, its values as they are."""
    return {name: getattr(value, name) for name in _fields(value.__class__)}


@cache
def _reader() -> cattrs.Converter:
    """Made where a report is read back, which few commands do."""
    import cattrs
    from cattrs.gen import make_dict_structure_fn, override

    converter = cattrs.Converter(forbid_extra_keys=False)
    for kind in (c for c in vars(model).values() if isinstance(c, type) and attrs.has(c)):
        left_out: dict[str, Any] = {
            f.name: override(omit=True) for f in attrs.fields(kind) if f.name not in _fields(kind)
        }
        converter.register_structure_hook(kind, make_dict_structure_fn(kind, converter, **left_out))
    return converter


def as_json(report: model.NCUProfileRegionReport) -> dict[str, Any]:
    """The report as plain dictionaries and lists."""
    result: dict[str, Any] = _plain(report)
    return result


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    own = value if isinstance(value, dict) else _as_dictionary(value)
    return {name: _plain(inner) for name, inner in own.items()}


def render_json(report: model.NCUProfileRegionReport) -> str:
    regions = sum(len(scope.regions) for scope in report.scopes)
    pretty = regions <= _PRETTY_UP_TO
    try:
        return orjson.dumps(report, _as_dictionary, orjson.OPT_INDENT_2 if pretty else 0).decode()
    except TypeError:
        # A name holds half of a surrogate pair, which UTF-8 has no form for: write it as an escape.
        return json.dumps(report, default=_as_dictionary, allow_nan=False, indent=2 if pretty else None)


def _files(view: View) -> Iterator[File]:
    text = render_json(view.report)
    yield File("report.json", text)
    if view.in_run:
        yield File(f"{view.regions_at}/report.json", text)


RENDERER = Renderer("`report.json`: everything, for programs; its schema ships with the package", _files)


def read_report(path: str | PathLike[str]) -> model.NCUProfileRegionReport:
    """A report written earlier: the file, or the directory it is in."""
    import cattrs

    file = Path(path)
    if file.is_dir():
        file = file / "report.json"
    if not file.is_file():
        raise UnreadableInput(f"There is no report at {file}.", "Make one with: llm-perf report INPUT --out DIR")
    try:
        report = _reader().structure(read_json(file, _LARGEST), model.NCUProfileRegionReport)
        return report if report.answer.where else attrs.evolve(report, answer=conclude(report))  # of an older version
    except OSError as error:
        raise UnreadableInput(
            f"{file} cannot be read: {error.strerror or error}.", "Give a report that can be read."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, cattrs.BaseValidationError) as error:
        raise UnreadableInput(
            f"{file} is not a report of llm-perf: {type(error).__name__}.",
            "Make one with: llm-perf report INPUT --out DIR",
        ) from error

"""The JSON Schema of `report.json`, made from the model's types so that the two cannot differ, and of what verbs print.

`report.schema.json` beside this file is what other programs use; `python -m llm_perf_opt.report.schema`
writes it anew, and a test compares the two.
"""

from __future__ import annotations

import json
import types
import typing
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from llm_perf_opt.json_output import SCHEMA_VERSION
from llm_perf_opt.regions import model

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def build_schema() -> dict[str, Any]:
    """The schema of a report."""
    definitions: dict[str, Any] = {}
    root = _schema_of(model.NCUProfileRegionReport, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llm-perf-opt region report",
        "description": f"Schema version {model.SCHEMA_VERSION}. Times are nanoseconds unless the name says _ms; null means not measured.",
        **root,
        "$defs": definitions,
    }


def printed_schema(name: str) -> dict[str, Any]:
    """The schema of what a verb prints with `--json`; of an error too, which every verb may print."""
    from llm_perf_opt.report.printed_json import SHAPES, Failure

    definitions: dict[str, Any] = {}
    shapes = [_schema_of(shape, definitions) for shape in (*SHAPES[name], Failure)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"llm-perf {name} --json",
        "description": f"Schema version {SCHEMA_VERSION}: keys may be added; none is renamed or removed.",
        "anyOf": shapes,
        "$defs": definitions,
    }


def shipped_schema() -> dict[str, Any]:
    """The schema as it ships with the package."""
    text = files("llm_perf_opt.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(a, definitions) for a in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], definitions)}
    if origin is typing.Annotated:
        return _schema_of(arguments[0], definitions) | {"description": arguments[1]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is typing.NotRequired:
        return _schema_of(arguments[0], definitions)
    if attrs.has(kind) or typing.is_typeddict(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # known before its fields are looked at: classes may nest
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"no JSON schema for {kind}")


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        fields, required = list(hints), [n for n in hints if typing.get_origin(hints[n]) is not typing.NotRequired]
    else:
        required = fields = [field.name for field in attrs.fields(kind) if field.metadata.get("in_json", True)]
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip().splitlines()[0],
        "properties": {name: _schema_of(hints[name], definitions) for name in fields},
        "required": required,
        # Fields may be added without a new major version.
        "additionalProperties": True,
    }


def main() -> None:
    target = Path(__file__).with_name("report.schema.json")
    target.write_text(json.dumps(build_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

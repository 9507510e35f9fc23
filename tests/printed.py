"""What verbs print with `--json`, held against the schema that `llm-perf schema` prints of it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from llm_perf_opt.report.schema import printed_schema


@cache
def _strict(name: str) -> Any:
    """The schema of a verb with no room for keys that it does not name."""
    text = json.dumps(printed_schema(name)).replace('"additionalProperties": true', '"additionalProperties": false')
    return jsonschema.Draft202012Validator(json.loads(text))


def check_printed(name: str, text: str) -> dict[str, Any]:
    """The one JSON object that a verb printed; it has to be as declared, and may have no key that is not."""
    found: dict[str, Any] = json.loads(text)
    _strict(name).validate(found)
    return found

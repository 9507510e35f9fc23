"""What `--json` prints, whichever the verb: one object, with the version of its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = "1.0"  # keys may be added without another one; none is renamed, removed or given another meaning


def print_json(content: Mapping[str, Any], *, indent: int | None = None) -> None:
    print(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=indent, ensure_ascii=indent is None))

"""A configuration whose every value is of the kind its key asks for, wherever it comes from.

Hydra's overrides go through here, and so does what a manifest kept: that may have been written by anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.conf.keys import KEYS, flattened
from llm_perf_opt.errors import UserError


def checked_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration; `UserError` names the first key that is missing or has a value it cannot have."""
    plain = {str(name): value for name, value in config.items()}
    values = dict(flattened(plain))
    if missing := [name for name in KEYS if name not in values]:
        raise UserError(
            f"The configuration has no {missing[0]} any more.",
            "Set single keys, as in run.mode=deep; none can be removed.",
        )
    for name, value in values.items():
        key = KEYS.get(name)
        if key is not None and not _fits(key.kind, value) and not (value is None and key.nullable):
            raise UserError(f"{name}={_short(value)} does not fit.", f"Allowed: {key.allowed}.")
        if key is not None and key.values and value not in key.values:
            raise UserError(f"{name}={_short(value)} is not known.", f"Allowed: {key.allowed}.")
    return plain


def _fits(kind: str, value: Any) -> bool:
    if kind == "switch":
        return isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind == "count":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if kind == "seconds":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if kind == "mapping":
        return isinstance(value, dict)
    if kind == "list":
        return isinstance(value, (list, str))
    return isinstance(value, (str, int, float, bool))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"

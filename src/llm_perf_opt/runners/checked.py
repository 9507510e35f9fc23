"""A configuration whose every value is what its key allows, wherever it comes from.

Hydra's overrides go through here, and so does what a manifest holds, which may be untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.options import KEYS, flatten


def checked_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration; `UserError` names the first key that is missing or has a value it cannot have."""
    plain = {str(name): value for name, value in config.items()}
    values = dict(flatten(plain))
    if missing := [name for name in KEYS if name not in values]:
        raise UserError(
            f"The configuration has no {missing[0]} any more.",
            "Set single keys, as in run.mode=deep; none can be removed.",
        )
    for name, value in values.items():
        if name in KEYS:
            KEYS[name].check(value)
    return plain

"""Why a server answered none of the requests of `--load`, and what helps, by how it refused them."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.diagnosis import Diagnosis, diagnose

_REFUSED = {
    "LOAD.key": ("HTTP 401", "HTTP 403"),
    "LOAD.protocol": ("HTTP 404", "HTTP 405", "HTTP 501"),
    "LOAD.refused": ("HTTP 400", "HTTP 413", "HTTP 422"),
}


def unanswered(found: dict[str, Any], failed: str) -> Diagnosis:
    """`found`: as `load.json` has it. `failed`: how many, and how the first one."""
    why = (found["first_failure"] or "").partition(":")[0]
    name = next((name for name, statuses in _REFUSED.items() if why in statuses), "LOAD.failed")
    return diagnose(name, failed=failed)

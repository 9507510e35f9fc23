"""What a reader must know about a result, as a value until it is shown."""

from __future__ import annotations

from attrs import define


@define
class Diagnosis:
    """Something the reader must know about a result: what, how bad, why, and the next thing to do."""

    code: str
    severity: str  # "info" | "warning" | "error"
    message: str
    fix: str = ""

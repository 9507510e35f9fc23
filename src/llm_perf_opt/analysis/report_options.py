"""What the user may choose about a report."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from attrs import Factory, define, field, fields

from llm_perf_opt.regions.attribution import Mode
from llm_perf_opt.version import __version__

_NOT_ASKED = {"asked": False}  # measured, or of no effect on the figures: no part of the fingerprint


@define
class ReportOptions:
    """Selection, attribution and lengths of lists; and the side inputs that belong to the recordings."""

    include: list[str] = Factory(list)
    exclude: list[str] = Factory(list)
    kernel_include: list[str] = Factory(list)
    kernel_exclude: list[str] = Factory(list)
    aggregate: bool = True
    attribution: Mode = "auto"
    top: int = 30  # kernels per region where a list has to be cut
    hardware: dict[str, Any] = Factory(dict)  # overrides of the GPU's figures: `hardware.*` of the configuration
    verdicts: bool = True  # False: regions and their numbers only, for those who plan
    # Also the launches that pictures show: outputs that draw none do without, for it takes time.
    launch_detail: bool = field(default=False, metadata=_NOT_ASKED)
    # As `llm-perf calibrate` stores them.
    calibrations: list[dict[str, Any]] = field(factory=list, metadata=_NOT_ASKED)
    # Region name or key -> "flops" of one run, "repeats".
    formula: dict[str, dict[str, float]] = field(factory=dict, metadata=_NOT_ASKED)
    # Path of a stage -> seconds of one run without a profiler.
    alone: dict[str, float] = field(factory=dict, metadata=_NOT_ASKED)

    def fingerprint(self) -> str:
        """The same for the same settings of the same version, whatever was measured."""
        asked = [f.name for f in fields(ReportOptions) if f.metadata.get("asked", True)]
        settings: dict[str, Any] = {name: getattr(self, name) for name in asked}
        text = json.dumps({"version": __version__, **settings}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

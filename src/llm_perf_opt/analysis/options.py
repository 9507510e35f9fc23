"""What the user may choose about a report."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from attrs import Factory, define

from llm_perf_opt.regions.attribution import Mode
from llm_perf_opt.version import __version__


@define
class ReportOptions:
    """Selection, attribution and lengths of lists."""

    include: list[str] = Factory(list)
    exclude: list[str] = Factory(list)
    kernel_include: list[str] = Factory(list)
    kernel_exclude: list[str] = Factory(list)
    aggregate: bool = True
    attribution: Mode = "auto"
    top: int = 30  # kernels per region where a list has to be cut
    hardware: dict[str, Any] = Factory(dict)  # overrides of the GPU's figures: `hardware.*` of the configuration
    calibrations: list[dict[str, Any]] = Factory(list)  # as `llm-perf calibrate` stores them
    formula: dict[str, dict[str, float]] = Factory(dict)  # region name or key -> "flops" of one run, "repeats"
    verdicts: bool = True  # False: regions and their numbers only, for those who plan
    alone: dict[str, float] = Factory(dict)  # path of a stage -> seconds of one run without a profiler

    def fingerprint(self) -> str:
        """The same for the same settings of the same version."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        text = json.dumps({"version": __version__, **settings}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Where nsys is: the environment's word, PATH, then the places NVIDIA's installers use."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ENVIRONMENT_VARIABLE = "LLM_PERF_NSYS"

# The last two: Nsight Compute carries an nsys of its own.
_PLACES = (
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-x64/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "/usr/local/cuda*/nsight-compute-*/host/target-linux-x64/nsys",
)


def find_nsys() -> Path | None:
    """The nsys to use, the newest where several are installed; None where there is none."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else None
    if on_path := shutil.which("nsys"):
        return Path(on_path)
    found = [p for place in _PLACES for p in Path("/").glob(place.lstrip("/")) if os.access(p, os.X_OK)]
    return max(found, key=_version, default=None)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]

"""Where nsys is: the environment's word, PATH, then the places NVIDIA's installers use."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

ENVIRONMENT_VARIABLE = "LLM_PERF_NSYS"

# Of two equally new ones the first place wins. The last: Nsight Compute carries an nsys of its own,
# which often lacks a library its importer needs.
PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda*/nsight-systems-*/bin/nsys",
    "/usr/local/cuda*/nsight-systems-*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/usr/lib/*-linux-gnu/nsight-systems/target-linux-*/nsys",
    "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "/usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
    "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Compute/host/target-linux-*/nsys",
)
_TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
_IN_TOOLKIT = (
    "nsight-systems-*/bin/nsys",
    "nsight-systems-*/target-linux-*/nsys",
    "bin/nsys",
    "nsight-compute-*/host/target-linux-*/nsys",
)


def find_nsys() -> Path | None:
    """The nsys to use, the newest where several are installed; None where there is none."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(named) if os.access(named, os.X_OK) else None
    if on_path := shutil.which("nsys"):
        return Path(on_path)
    return next(iter(installed_nsys()), None)


def installed_nsys(root: Path = Path("/")) -> list[Path]:
    """Every nsys of the chosen toolkit and in the usual places, then those inside a Nsight Compute elsewhere."""
    places = list(dict.fromkeys([*in_toolkit(_IN_TOOLKIT), *installed(PLACES, root)]))
    for ncu in (os.environ.get("LLM_PERF_NCU"), shutil.which("ncu")):
        if ncu:
            inside = sorted(Path(ncu).resolve().parent.glob("host/target-linux-*/nsys"))
            places += [path for path in inside if _is_program(path) and path not in places]
    return places


def installed(places: Sequence[str], root: Path = Path("/")) -> list[Path]:
    """Programs at these globs below `root`, the newest first as far as the folder's name tells."""
    found = [path for place in places for path in sorted(root.glob(place.lstrip("/"))) if _is_program(path)]
    # A stable sort: equally new ones stay in the order of their places.
    return sorted(dict.fromkeys(found), key=lambda path: _version(path.relative_to(root)), reverse=True)


def in_toolkit(places: Sequence[str]) -> list[Path]:
    """Programs below the CUDA toolkit or Conda environment that the environment names."""
    folders = [Path(folder) for name in _TOOLKIT_VARIABLES if (folder := os.environ.get(name))]
    return [path for folder in dict.fromkeys(folders) for path in installed(places, folder)]


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _version(path: Path) -> tuple[list[int], list[int]]:
    """The tool's own version (2025.3.1) before that of the toolkit around it (cuda-13.0)."""
    numbers = [[int(part) for part in text.split(".")] for text in re.findall(r"\d+(?:\.\d+)+", str(path))]
    own = [number for number in numbers if number[0] >= 2000]
    return (own[-1] if own else [], numbers[0] if numbers else [])

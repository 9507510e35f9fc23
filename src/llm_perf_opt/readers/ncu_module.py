"""Where ncu is, and beside it the module that reads its reports: `ncu_report` is NVIDIA's, and not ours to pass on.

The package of that name on PyPI is taken where it is installed. Else the module that every Nsight Compute has in its
`extras/python` does the same.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from llm_perf_opt.readers.nsys_tool import in_toolkit, installed

NCU_VARIABLE = "LLM_PERF_NCU"
NCU_PLACES = (
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/cuda*/nsight-compute-*/ncu",
    "/usr/local/cuda*/bin/ncu",
    "/usr/lib/nsight-compute/ncu",
    "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Compute/ncu",
)
_NCU_IN_TOOLKIT = ("nsight-compute-*/ncu", "bin/ncu")


def installed_ncu(root: Path = Path("/")) -> list[Path]:
    """Every ncu of the chosen toolkit and in the folders of NVIDIA's installers."""
    return list(dict.fromkeys([*in_toolkit(_NCU_IN_TOOLKIT), *installed(NCU_PLACES, root)]))


def module_folders(root: Path = Path("/")) -> list[Path]:
    """Folders with NVIDIA's module, that of the ncu in use first; an ncu that is named is the only one."""
    named, on_path = os.environ.get(NCU_VARIABLE), shutil.which("ncu")
    found = [Path(named)] if named else [*([Path(on_path)] if on_path else []), *installed_ncu(root)]
    folders = [folder for ncu in found if ncu.is_absolute() for folder in _homes(ncu.resolve())]
    beside = [folder / "extras" / "python" for folder in dict.fromkeys(folders)]
    return [folder for folder in beside if (folder / "ncu_report.py").is_file()]


def _homes(ncu: Path) -> list[Path]:
    """Where an ncu belongs: its own folder; CUDA's `bin/ncu` is a script that starts the one beside `bin`."""
    return [ncu.parent, *sorted(ncu.parent.parent.glob("nsight-compute-*"), reverse=True)]


def of_an_installed_ncu() -> Any:
    """NVIDIA's module from an installed ncu; `ImportError` where none has one that loads here."""
    for folder in module_folders():
        sys.path.insert(0, str(folder))
        sys.modules.pop("ncu_report", None)
        try:
            return importlib.import_module("ncu_report")
        except ImportError:  # made for another Python or another processor
            sys.path.remove(str(folder))
    raise ImportError("no installed ncu has it")

"""`llm-perf calibrate`: measures what this GPU reaches, for reports to show beside its printed peaks."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ExitCode, MissingTool, UserError

HELP = "measure the peaks this GPU reaches"
DESCRIPTION = """\
Measures large matrix products in every data type the GPU has and a plain copy, in about half a minute, and
keeps the best of each. Reports of recordings made on the same GPU, or on one of the same model, then show
utilisation against the printed peak and against the measured one. Needs a GPU and PyTorch; nothing else
should run on the GPU meanwhile.
"""
EXAMPLES = """\
examples:
  llm-perf calibrate
  llm-perf calibrate --device 1 --json
  llm-perf calibrate --out calibration.json
  llm-perf report run.sqlite run.ncu-rep --calibration calibration.json
"""


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.calibration import store

    torch = import_torch()
    device = _device(torch, arguments.device)
    path = Path(arguments.out) if arguments.out else store.default_path()
    if path.exists():
        store.load(path)  # a file that cannot be added to should be known before half a minute of work
    quiet = arguments.json or arguments.quiet

    def say(text: str) -> None:
        if not quiet:
            print(f"  {text}", file=sys.stderr)

    entry = calibrate(torch, device, say)
    store.save(entry, path)
    if arguments.json:
        print(json.dumps({"out": str(path), "calibration": entry}))
    elif arguments.quiet:
        print(path)
    else:
        _show(entry, path)
    return int(ExitCode.DONE)


def import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingTool(
            "Calibration needs PyTorch, which is not installed here.",
            "Install it: pip install 'llm-perf-opt[torch]', and run llm-perf calibrate again.",
        ) from error
    if not torch.cuda.is_available():
        raise MissingTool(
            "Calibration needs an NVIDIA GPU, and PyTorch finds none.",
            "Run llm-perf calibrate on the machine with the GPU, and give reports the file with --calibration FILE; "
            "where there is a GPU, check the driver with nvidia-smi and that PyTorch was built with CUDA.",
        )
    return torch


def _device(torch: Any, number: int) -> int:
    count = torch.cuda.device_count()
    if not 0 <= number < count:
        raise UserError(f"There is no GPU {number}; this machine has {count}.", "Choose one with --device N.")
    return number


def calibrate(torch: Any, device: int, say: Any) -> dict[str, Any]:
    """One entry for the store."""
    from llm_perf_opt.calibration.measure import cases, event_clock, measure

    properties = torch.cuda.get_device_properties(device)
    torch.cuda.set_device(device)
    kept = torch.backends.cuda.matmul.allow_tf32
    capability = (int(properties.major), int(properties.minor))
    try:
        with torch.inference_mode():
            found = measure(cases(torch, f"cuda:{device}", capability), event_clock(torch), say=say)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept
    if not found.best:
        raise UserError(
            f"Nothing could be measured on {properties.name}: {'; '.join(found.skipped.values()) or 'no reason was given'}.",
            "Free the GPU's memory (nvidia-smi shows who uses it) and run llm-perf calibrate again.",
            ExitCode.MISSING_TOOL,
        )
    uuid, driver = _identity(device, getattr(properties, "uuid", ""))
    bandwidth = found.best.get("bandwidth")
    return {
        "gpu": str(properties.name),
        "uuid": uuid,
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": str(torch.__version__),
        "driver": driver,
        "peaks": {k: {"value": v, "unit": "FLOP/s"} for k, v in found.best.items() if k != "bandwidth"},
        "bandwidth": None if bandwidth is None else {"value": bandwidth, "unit": "B/s"},
        "skipped": found.skipped,
        "details": found.details,
    }


def _identity(device: int, uuid: object) -> tuple[str, str]:
    """UUID and driver version; what nvidia-smi does not tell stays empty."""
    known = str(uuid or "")
    selector = f"GPU-{known}" if known and not known.startswith("GPU-") else known or str(device)
    query = ["nvidia-smi", "-i", selector, "--query-gpu=uuid,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return known, ""
    parts = [part.strip() for part in answer.strip().partition("\n")[0].split(",")]
    return (known or parts[0], parts[1]) if len(parts) == 2 else (known, "")


def _show(entry: dict[str, Any], path: Path) -> None:
    from rich.table import Table

    from llm_perf_opt.metrics.hardware import find_hardware
    from llm_perf_opt.metrics.hardware.data import PEAKS
    from llm_perf_opt.metrics.quantity import Quantity, shown
    from llm_perf_opt.report.terminal import console

    gpu = find_hardware(0, {"name": entry["gpu"], "compute_capability": entry["compute_capability"]})
    rows = [(PEAKS.get(kind, kind), Quantity(**value), gpu.peaks.get(kind)) for kind, value in entry["peaks"].items()]
    if entry["bandwidth"]:
        rows.append(("memory, copy (read and written)", Quantity(**entry["bandwidth"]), gpu.bandwidth))
    table = Table(box=None, pad_edge=False, header_style="bold", title=entry["gpu"], title_justify="left")
    for name in ("", "measured", "printed", "reached"):
        table.add_column(name, justify="right" if name else "left")
    for title, value, printed in rows:
        reached = "–" if printed is None else f"{100 * (value / printed).of('ratio'):.1f} %"
        table.add_row(title, shown(value), shown(printed), reached)
    out = console()
    out.print(table)
    for kind, why in entry["skipped"].items():
        out.print(f"not measured: {PEAKS.get(kind, kind)} ({why})", markup=False, soft_wrap=True)
    out.print(f"Kept in {path}", markup=False, soft_wrap=True)

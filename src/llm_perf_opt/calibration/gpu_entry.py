"""Measures one GPU of this machine: the entry that `store` keeps."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from llm_perf_opt.calibration.peaks import cases, event_clock, measure
from llm_perf_opt.errors import ExitCode, MissingTool, UserError


def import_torch(number: int) -> Any:
    """torch, which sees the GPU of this number."""
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
            "if there is a GPU, check the driver with nvidia-smi and that PyTorch was built with CUDA.",
        )
    count = torch.cuda.device_count()
    if not 0 <= number < count:
        raise UserError(f"There is no GPU {number}; this machine has {count}.", "Choose one with --device N.")
    return torch


def calibrate(torch: Any, device: int, report_progress: Callable[[str], None]) -> dict[str, Any]:
    """One entry for the store."""
    properties = torch.cuda.get_device_properties(device)
    torch.cuda.set_device(device)
    kept = torch.backends.cuda.matmul.allow_tf32
    capability = (int(properties.major), int(properties.minor))
    try:
        with torch.inference_mode():
            found = measure(cases(torch, f"cuda:{device}", capability), event_clock(torch), say=report_progress)
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

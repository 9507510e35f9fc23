"""`llm-perf calibrate`: measures what this GPU reaches, for reports to show beside its printed peaks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ExitCode
from llm_perf_opt.json_output import print_json

HELP = "measure the peaks that this GPU reaches"
DESCRIPTION = """\
Measures large matrix products in every data type the GPU has and a plain copy, in about half a minute, and
keeps the best of each. Reports of recordings made on the same GPU, or on one of the same model, then show
utilisation relative to the data-sheet peak and to the measured one. Needs a GPU and PyTorch; nothing
else should use the GPU meanwhile.
"""
EXAMPLES = """\
examples:
  llm-perf calibrate
  llm-perf calibrate --device 1 --json
  llm-perf calibrate --out calibration.json
  llm-perf report run.sqlite run.ncu-rep --calibration calibration.json
"""


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.calibration import gpu_entry, store

    torch = gpu_entry.import_torch(arguments.device)
    path = Path(arguments.out) if arguments.out else store.default_path()
    if path.exists():
        store.load(path)  # a file that cannot be added to should be known before half a minute of work
    quiet = arguments.json or arguments.quiet

    def report_progress(text: str) -> None:
        if not quiet:
            print(f"  {text}", file=sys.stderr)

    entry = gpu_entry.calibrate(torch, arguments.device, report_progress)
    store.save(entry, path)
    if arguments.json:
        print_json({"out": str(path), "calibration": entry})
    elif arguments.quiet:
        print(path)
    else:
        _show(entry, path)
    return int(ExitCode.DONE)


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

"""`%%llm_perf`: what a cell of a notebook takes, and where its time goes.

The cell runs where it stands, with everything the notebook has loaded. It is timed undisturbed first; then, where PyTorch
is loaded, run once more under its profiler, and the trace is opened as any other. Needs no IPython but for the magic.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from attrs import define, field

from llm_perf_opt.api.result import Report, open_report
from llm_perf_opt.errors import UserError
from llm_perf_opt.report.text import duration

Run = Callable[[], object]


@define(frozen=True, repr=False)
class MeasuredCell:
    """Times of a cell, in seconds, and the report of its profile where there is one."""

    times: list[float]
    warmup: list[float] = field(factory=list)
    report: Report | None = None
    note: str = ""

    def __repr__(self) -> str:
        median = statistics.median(self.times) * 1e9
        text = f"{duration(median)} (median of {len(self.times)}"
        if len(self.times) > 1:
            text += f", {duration(min(self.times) * 1e9)} to {duration(max(self.times) * 1e9)}"
        text += ")"
        if self.warmup:
            text += f"; before that {duration(sum(self.warmup) * 1e9)} of warm-up"
        return f"{text}\n{self.note}" if self.note else text

    def _repr_html_(self) -> str:
        import html

        shown = f"<p>{html.escape(repr(self))}</p>"
        return shown + self.report._repr_html_() if self.report is not None else shown

    def _repr_markdown_(self) -> str:
        shown = repr(self).replace("\n", "\n\n")
        return f"{shown}\n\n{self.report._repr_markdown_()}" if self.report is not None else shown


def measure_cell(run: Run, *, runs: int = 3, warmup: int = 1, profile: bool = True) -> MeasuredCell:
    """`run` is called `warmup` + `runs` times, and once more under PyTorch's profiler."""
    before = [_timed(run) for _ in range(warmup)]
    times = [_timed(run) for _ in range(runs)]
    torch = sys.modules.get("torch")  # never imported for this: a cell that does not use it has no kernels
    if not profile:
        return MeasuredCell(times, before)
    if torch is None:
        return MeasuredCell(times, before, note="PyTorch is not loaded: the cell was timed, and not profiled.")
    report, note = _profiled(torch, run)
    return MeasuredCell(times, before, report, note)


def _timed(run: Run) -> float:
    _synchronize()
    began = time.perf_counter()
    run()
    _synchronize()
    return time.perf_counter() - began


def _synchronize() -> None:
    """All work of the GPU belongs to the cell that launched it; nothing is started where CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _profiled(torch: Any, run: Run) -> tuple[Report | None, str]:
    from llm_perf_opt.workloads.marks import mark

    with tempfile.TemporaryDirectory(prefix="llm-perf-cell-") as folder:
        trace = Path(folder) / "cell.pt.trace.json"
        with torch.profiler.profile(record_shapes=True) as profiler, mark("cell"):
            run()
            _synchronize()
        profiler.export_chrome_trace(str(trace))
        try:
            return open_report(trace), ""
        except UserError as error:
            return None, f"The profile of the cell says nothing: {error}"


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"%%llm_perf: {message}.", "See %%llm_perf --help")


def parse_options(line: str) -> argparse.Namespace:
    """The words behind `%%llm_perf`."""
    parser = _Options(prog="%%llm_perf", description="Times the cell, and profiles it where PyTorch is loaded.")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="timed runs of the cell (default 3)")
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="runs before those (default 1)")
    parser.add_argument("--no-profile", action="store_true", help="time it only")
    parser.add_argument("--name", metavar="NAME", help="keep the result in this variable")
    found = parser.parse_args(shlex.split(line))
    if found.runs < 1 or found.warmup < 0:
        raise UserError("%%llm_perf needs one timed run or more.", "Give --runs 1 or more, --warmup 0 or more.")
    return found


def register_magic(shell: Any) -> None:
    """`%%llm_perf` for an IPython shell."""

    def llm_perf(line: str, cell: str) -> MeasuredCell | None:
        try:
            options = parse_options(line)
        except SystemExit:  # --help
            return None
        code = compile(shell.transform_cell(cell), "<%%llm_perf>", "exec")
        names = shell.user_ns
        found = measure_cell(
            lambda: exec(code, names),  # noqa: S102 - the user's own cell, as IPython would run it
            runs=options.runs,
            warmup=options.warmup,
            profile=not options.no_profile,
        )
        if options.name:
            names[options.name] = found
        return found

    shell.register_magic_function(llm_perf, magic_kind="cell", magic_name="llm_perf")

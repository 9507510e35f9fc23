"""By thread, GPU time and kernels of every range are those of `nsys stats`, to the nanosecond.

nsys reports range *names*, we report paths: ours are added up by innermost name. Two habits of nsys:

- Of a name nested in itself (outer/inner/outer) it counts every kernel once, but adds its time once per
  level. So counts are compared with our outermost regions of a name, times with all of them.
- A line break in a name is written as it is, which is not valid CSV: such rows are put together again.
"""

from __future__ import annotations

import csv
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import RECORDINGS, SHARED, installed, plain_bytes, report

COLUMNS = 13
Values = dict[tuple[str, str], tuple[int, int]]  # (name as nsys writes it, style) -> kernels, nanoseconds

ORACLES = sorted(RECORDINGS.glob("nsys-*.nvtx_kern_sum.csv.xz"))
# Distinct (name, style) in nsys's answer, "outside all ranges" included: none may be dropped on the way.
ROWS = {
    **{"decoder-8layers": 15, "decoder-8layers-warm": 15, "decoder-36layers": 43, "graph_node": 9, "graph_whole": 7},
    **{"names": 93, "ranks": 3, "threads": 4, "train": 6},
}


def rows_of(text: str) -> list[list[str]]:
    """The rows of nsys's CSV; lines are joined until a row is whole."""
    rows: list[list[str]] = []
    pending = ""
    for line in text.splitlines()[1:]:
        pending = f"{pending}\n{line}" if pending else line
        cells = next(csv.reader([pending.replace("\n", "\0")]), [])
        if len(cells) == COLUMNS:
            rows.append([cell.replace("\0", "\n") for cell in cells])
            pending = ""
    assert not pending.strip(), f"not understood: {pending!r}"
    return rows


def values_of_nsys(text: str) -> Values:
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, style, _, _, _, kernels, time, *_ in rows_of(text):
        found[name, style][0] += int(kernels)
        found[name, style][1] += int(time)
    return {key: (kernels, time) for key, (kernels, time) in found.items()}


def values_of_ours(path: Path, colon_first: bool) -> Values:
    """The same from our report. `colon_first`: this nsys writes a range of the default domain as `:name`."""
    scope = report(path, attribution="thread", verdicts=False).main_scope
    assert scope is not None
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for region in scope.regions:
        name = f"{region.domain}:{region.name}" if region.domain or colon_first else region.name
        key = (name, "StartEnd" if region.range_kind == "start_end" else "PushPop")
        found[key][0] += region.inclusive.kernel_count if region.name not in region.path[:-1] else 0
        found[key][1] += region.inclusive.gpu_time_ns or 0
    totals = scope.totals
    found["", ""] = [totals.unattributed_kernel_count, totals.unattributed_gpu_time_ns or 0]
    # nsys has no row for what holds no kernel.
    return {key: (kernels, time) for key, (kernels, time) in found.items() if kernels}


def assert_same(path: Path, text: str) -> int:
    theirs = values_of_nsys(text)
    colon_first = any(name.startswith(":") for name, _ in theirs)
    assert values_of_ours(path, colon_first) == theirs
    return len(theirs)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda p: p.name.split(".nvtx")[0])
def test_every_recorded_answer_of_nsys_is_ours(oracle: Path) -> None:
    stem = oracle.name.removesuffix(".nvtx_kern_sum.csv.xz")
    (path,) = RECORDINGS.glob(f"{stem}.sqlite.*")
    assert assert_same(path, plain_bytes(oracle).decode("utf-8")) == ROWS[stem.split("-h200-")[1]]


def test_there_is_an_answer_of_nsys_for_every_recording() -> None:
    stems = {p.name.removesuffix(".nvtx_kern_sum.csv.xz") for p in ORACLES}
    assert stems == {p.name.split(".sqlite")[0] for p in RECORDINGS.glob("nsys-*.sqlite.*")}


def test_of_a_name_nested_in_itself_nsys_counts_kernels_once_and_time_twice() -> None:
    (oracle,) = RECORDINGS.glob("nsys-*-names.nvtx_kern_sum.csv.xz")
    assert values_of_nsys(plain_bytes(oracle).decode("utf-8"))[":outer", "PushPop"] == (2, 3 * 864)
    scope = report("nsys-*-names.sqlite", attribution="thread", verdicts=False).main_scope
    assert scope is not None
    by_path = {"/".join(r.path): r.inclusive for r in scope.regions if r.domain == ""}
    assert (by_path["outer"].kernel_count, by_path["outer"].gpu_time_ns) == (2, 2 * 864)
    assert (by_path["outer/inner/outer"].kernel_count, by_path["outer/inner/outer"].gpu_time_ns) == (1, 864)


LIVE: list[Any] = sorted([*SHARED.glob("public/*.sqlite"), *SHARED.glob("h200/*.sqlite.gz")]) or [
    pytest.param(SHARED, marks=pytest.mark.skip(reason="the shared recordings are not here"))
]


@pytest.mark.parametrize("path", LIVE, ids=lambda p: p.name)
def test_the_installed_nsys_gives_the_same_for_the_shared_recordings(
    path: Path, unpacked: Callable[[Path], Path]
) -> None:
    nsys = installed("nsys")
    if nsys is None:
        pytest.skip("no nsys here: set LLM_PERF_NSYS or put it on PATH")
    file = unpacked(path)
    argv = [nsys, "stats", "--report", "nvtx_kern_sum", "--format", "csv", "-q", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if "NVTX Range" not in done.stdout:
        pytest.skip(f"nsys has no answer for this file: {(done.stdout + done.stderr).strip()[:200]}")
    assert assert_same(file, done.stdout[done.stdout.index("NVTX Range") :]) > 0

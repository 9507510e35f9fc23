"""Times that a program took of its own ranges, with no profiler (`inject/payload/_llm_perf_annotate/timers.py`).

The processes of a program leave rows of integers, the names they speak of, and what they did only once; `collect`
makes one file of them, with what was seen of the GPUs meanwhile. `read_measured` makes a timeline of it that has
ranges and no GPU work. A range takes the time between its CUDA events where it has them: that is when the GPU got to
its work and was done with it, whether the host waited for that or not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from attrs import Factory, define, evolve, fields

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.files import write_text
from llm_perf_opt.readers.open import MEASURED
from llm_perf_opt.readers.plausible import shortened
from llm_perf_opt.readers.sandbox import Notes
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import ONCE, UNKNOWN_HERE, Int64s, OnlyOnce, Process, Ranges, Timeline, Work
from llm_perf_opt.regions.gpu_samples import COLUMNS, GpuSamples
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.untrusted import parse_json, read_head, read_text

KIND = "measured"
MOST_RANKS = 10**6
_VERSION = 2
# The columns of a row, as the program writes them; it cannot import this module.
_ROW = ("name", "thread", "start", "end", "gpu_start", "gpu_end", "memory_peak", "memory_growth")
_FILE = re.compile(r"(\d{1,10})-\d{1,20}\.names")
_LARGEST = 2_000_000_000  # bytes of rows; a day of ranges of a millisecond
_LARGEST_TEXT = 400_000_000
_NO_UUID = "GPU-"  # of a torch that does not say which GPU it uses
_COLUMNS = [f.name for f in fields(Ranges) if f.name != "recorded"]
_AHEAD = 0.8  # of the GPU's time: a host that takes less for a range launches and goes on
_AGAIN = "Measure again: llm-perf measure -- CMD"


@define(eq=False)
class _OfProcess:
    run: int
    pid: int
    names: list[tuple[str, str]]  # domain and name
    rows: Int64s  # shape (n, columns)
    once: list[tuple[int, int, int]] = Factory(list)  # what (of ONCE), from, to
    uuids: list[str] = Factory(list)  # of the GPUs it could use
    warm: bool = False
    cpu: tuple[int, int] | None = None  # nanoseconds that its threads ran, and waited for a CPU
    rank: int | None = None  # in its job
    start_end: list[int] = Factory(list)  # names that are those of start/end ranges
    cost: tuple[int, int] | None = None  # nanoseconds to time a range: at least, and where it comes seldom

    def as_json(self) -> dict[str, Any]:
        facts = {"run": self.run, "pid": self.pid, "names": self.names, "once": self.once, "uuids": self.uuids}
        facts |= {"warm": True} if self.warm else {}
        facts |= {"cpu": self.cpu} if self.cpu else {}
        facts |= {"rank": self.rank} if self.rank is not None else {}
        facts |= {"start_end": self.start_end} if self.start_end else {}
        facts |= {"cost": self.cost} if self.cost else {}
        return {**facts, "rows": self.rows.tolist()}


def collect(
    folders: Sequence[Path],
    file: Path,
    gpus: Iterable[list[dict[str, Any]]] = (),
    *,
    windows: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    warm: bool = False,
) -> int:
    """What the processes of some runs left, one folder a run, as one file; how many ranges that are.

    `gpus`: what was seen of them in each run. `windows`: of a run, the moments between which ranges count.
    `warm`: the program was warm before it was timed.
    """
    processes = [
        _within(_read(names, run), windows.get(run))
        for run, folder in enumerate(folders)
        for names in sorted(folder.glob("*.names"))
        if _FILE.fullmatch(names.name)
    ]
    found = [evolve(process, warm=warm) for process in processes if len(process.rows)]
    _write(file, list(gpus), [process.as_json() for process in found])
    return sum(len(process.rows) for process in found)


def add_gpus(file: Path, gpus: list[dict[str, Any]]) -> None:
    """Put what was seen of the GPUs into the file of a program that collected its times itself.

    All runs are of one process, one after the other: each gets the samples until the next begins. The last of them
    begins the next run, too, so that the energy between two samples is that of a run.
    """
    processes = parse_json(read_text(file, _LARGEST_TEXT))["processes"]
    begin = sorted(min(row[_ROW.index("start")] for row in process["rows"]) for process in processes)
    runs: list[list[dict[str, Any]]] = [[] for _ in begin]
    for gpu in gpus:
        samples, first = gpu["samples"], 0
        for number, seen in enumerate(runs):
            until = begin[number + 1] if number + 1 < len(begin) else math.inf
            last = sum(sample[0] < until for sample in samples)
            seen.append({**gpu, "samples": samples[first:last]})
            first = max(last - 1, 0)
    _write(file, runs, processes)


def _write(file: Path, gpus: list[list[dict[str, Any]]], processes: list[dict[str, Any]]) -> None:
    text = ", ".join(map(json.dumps, processes))
    write_text(file, f'{MEASURED} "version": {_VERSION}, "gpus": {json.dumps(gpus)}, "processes": [{text}]}}\n')


def _within(process: _OfProcess, window: tuple[int, int] | None) -> _OfProcess:
    """Without ranges that began before a window, or ended after it."""
    if window is None:
        return process
    columns = dict(zip(_ROW, process.rows.T, strict=True))
    return evolve(process, rows=process.rows[(columns["start"] >= window[0]) & (columns["end"] <= window[1])])


def read_measured(file: Path, source: str | None = None) -> Timeline:
    """The timeline of measured runs; raises UnreadableInput where it has no row that makes sense."""
    found, gpus = _content(file)
    if not found:
        raise UnreadableInput(
            f"{file.name} has no times: the program opened no range that could be timed, or was stopped before one had ended.",
            "Mark stages in it with torch.cuda.nvtx.range or nvtx.annotate, or add: --annotate stages",
        )
    strings: dict[str, int] = {}
    domains: dict[str, int] = {"": 0}
    threads: dict[tuple[int, int], int] = {}
    parts = []
    for number, process in enumerate(found):
        names = np.array([strings.setdefault(name, len(strings)) for _, name in process.names], dtype=np.int32)
        of_name = np.array([domains.setdefault(domain, len(domains)) for domain, _ in process.names], dtype=np.int32)
        columns = dict(zip(_ROW, process.rows.T, strict=True))
        thread = [threads.setdefault((number, t), len(threads)) for t in columns["thread"].tolist()]
        parts.append(
            Ranges(
                start=columns["start"],
                end=columns["end"],
                process=np.full(len(process.rows), number, dtype=np.int32),
                thread=np.array(thread, dtype=np.int32),
                domain=of_name[columns["name"]],
                name=names[columns["name"]],
                start_end=np.isin(columns["name"], process.start_end),
                took=_took(columns),
                gpu_start=np.where(_is_on_gpu(columns), columns["gpu_start"], UNKNOWN_HERE),
                memory_peak=columns["memory_peak"],
                memory_growth=columns["memory_growth"],
            )
        )
    empty = Work.empty()
    once = np.array([(*row, n) for n, p in enumerate(found) for row in p.once], dtype=np.int64).reshape(-1, 4).T
    used = {uuid for process in found for uuid in process.uuids}
    timeline = Timeline(
        source=source or file.name,
        kind=KIND,
        strings=list(strings),
        domains=list(domains),
        processes=[
            Process(p.pid, rank=p.rank, run=p.run, warm=p.warm, cpu_wait=_waited(p.cpu), range_cost_ns=p.cost)
            for p in found
        ],
        threads=[number for number, _ in threads],
        kernels=empty,
        copies=empty,
        graphs=empty,
        ranges=Ranges(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}),
        only_once=OnlyOnce(once[0].astype(np.int32), once[3].astype(np.int32), once[1], once[2]),
        gpus=[gpu for gpu in gpus if gpu.uuid in used or (_NO_UUID in used and len({g.uuid for g in gpus}) == 1)],
    )
    return _filled(timeline)


def read_here(path: str, source: str, *columns: bool, notes: Notes) -> Timeline:
    """The same, in the process of a sandbox."""
    return read_measured(Path(path), source)


def _waited(cpu: tuple[int, int] | None) -> float | None:
    """The part of the time in which threads could have run that they waited."""
    if cpu is None or min(cpu) < 0 or not sum(cpu):
        return None
    return cpu[1] / sum(cpu)


def _is_on_gpu(columns: dict[str, Int64s]) -> Any:
    return columns["gpu_end"] >= np.maximum(columns["gpu_start"], 0)


def _took(columns: dict[str, Int64s]) -> Int64s:
    """The GPU's time, or else the host's."""
    host, on_gpu = columns["end"] - columns["start"], _is_on_gpu(columns)
    took: Int64s = np.where(on_gpu, columns["gpu_end"] - columns["gpu_start"], host)
    return took


def _filled(timeline: Timeline) -> Timeline:
    """The same, with better times for instances without events, where others of their region have them.

    Events of all instances would have cost the program too much. The others take in proportion to the host's time,
    where the host goes as fast as the GPU; where it runs ahead of the GPU, its time says nothing, and they take the
    median of the GPU's.
    """
    ranges = timeline.ranges
    assert ranges.took is not None
    assert ranges.gpu_start is not None
    host, on_gpu, took = ranges.end - ranges.start, ranges.gpu_start != UNKNOWN_HERE, ranges.took.copy()
    if not on_gpu.any() or on_gpu.all():
        return timeline
    for _, mine in group_by(attribute(timeline).range_region):
        known, missing = mine[on_gpu[mine]], mine[~on_gpu[mine]]
        if len(known) and len(missing):
            usual, of_host = float(np.median(took[known])), max(float(np.median(host[known])), 1.0)
            ahead = of_host < _AHEAD * usual
            guessed = np.maximum(host[missing], usual) if ahead else host[missing] * (usual / of_host)
            took[missing] = np.round(guessed).astype(np.int64)
    return evolve(timeline, ranges=evolve(ranges, took=took))


def _content(file: Path) -> tuple[list[_OfProcess], list[GpuSamples]]:
    try:
        content = parse_json(read_text(file, _LARGEST_TEXT))
        if content["version"] != _VERSION:
            raise UnreadableInput(f"{file.name} was written by another version of llm-perf.", _AGAIN)
        found = [_process(process) for process in content["processes"]]
        gpus = [_gpu(run, gpu) for run, seen in enumerate(content["gpus"]) for gpu in seen]
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UnreadableInput(f"{file.name} has no measured times ({error}).", _AGAIN) from error
    checked = [evolve(p, rows=_sensible(p.rows, len(p.names))) for p in found]
    return [process for process in checked if len(process.rows)], [gpu for gpu in gpus if len(gpu.time)]


def _process(content: dict[str, Any]) -> _OfProcess:
    return _OfProcess(
        int(content["run"]),
        int(content["pid"]),
        [(str(domain), str(name)) for domain, name in content["names"]],
        np.array(content["rows"], dtype=np.int64).reshape(-1, len(_ROW)),
        [(int(what), int(start), int(end)) for what, start, end in content["once"] if 0 <= what < len(ONCE)],
        [str(uuid) for uuid in content["uuids"]],
        content.get("warm") is True,
        cpu=_two(content.get("cpu")),
        rank=_rank(content.get("rank")),
        start_end=[int(number) for number in content.get("start_end", ())],
        cost=_two(content.get("cost")),
    )


def _two(times: Any) -> tuple[int, int] | None:
    if times is None:
        return None
    first, second = times
    return int(first), int(second)


def _rank(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < MOST_RANKS else None


def _gpu(run: int, content: dict[str, Any]) -> GpuSamples:
    rows = np.array(content["samples"], dtype=np.int64).reshape(-1, len(COLUMNS))
    others = [
        {"pid": int(o["pid"]), "name": str(o["name"])[:80], "bytes": int(o["bytes"]), "percent": float(o["percent"])}
        for o in content["others"]
    ]
    return GpuSamples(
        run=run,
        uuid=str(content["uuid"]),
        name=str(content["name"])[:80],
        power_limit_mw=int(content["power_limit_mw"]),
        max_sm_mhz=int(content["max_sm_mhz"]),
        others=others,
        **dict(zip(COLUMNS, np.ascontiguousarray(rows[np.argsort(rows[:, 0])].T), strict=True)),
    )


def _sensible(rows: Int64s, names: int) -> Int64s:
    """Rows that speak of a name and do not end before they begin."""
    name, start, end = rows[:, 0], rows[:, 2], rows[:, 3]
    return rows[(name >= 0) & (name < names) & (start >= 0) & (end >= start)]


def _read(file: Path, run: int) -> _OfProcess:
    """What one process wrote; what was cut off is left out."""
    width = len(_ROW)
    try:
        whole, host = _numbers(file.with_suffix(".rows"), width), _numbers(file.with_suffix(".host"), width // 2)
        lines = read_text(file, _LARGEST_TEXT, errors="replace").splitlines()
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{file.name} cannot be read: {error}.", _AGAIN) from error
    found = _OfProcess(run, int(file.name.partition("-")[0]), [], np.zeros((0, len(_ROW)), dtype=np.int64))
    for line in lines:
        try:
            match parse_json(line):
                case {"name": [int(number), str(domain), str(text)], **more} if number == len(found.names):
                    found.names.append((shortened(domain), shortened(text)))
                    found.start_end += [number] if more.get("start_end") is True else []
                case {"why": str(why), "from": int(start), "to": int(end)} if why in ONCE:
                    found.once.append((ONCE.index(why), start, end))
                case {"uuid": str(uuid)}:
                    found.uuids.append(uuid if uuid.startswith(_NO_UUID) else _NO_UUID + uuid)
                case {"cpu": [int(ran), int(waited)]}:
                    found.cpu = ran, waited
                case {"cost": [int(least), int(most)]}:
                    found.cost = least, most
                case {"rank": rank}:
                    found.rank = _rank(rank)
        except ValueError:  # the process was killed while it wrote
            continue
    host = np.pad(host, ((0, 0), (0, width // 2)), constant_values=UNKNOWN_HERE)
    return evolve(found, rows=_sensible(np.concatenate([whole, host]), len(found.names)))


def _numbers(file: Path, width: int) -> Int64s:
    if not file.exists():
        return np.zeros((0, width), dtype=np.int64)
    raw = read_head(file, _LARGEST)
    return np.frombuffer(raw[: len(raw) // (8 * width) * 8 * width], dtype="<i8").reshape(-1, width).astype(np.int64)

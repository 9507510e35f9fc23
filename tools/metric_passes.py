"""Asks NVIDIA's own scheduler what each level of `metrics/` costs, for every chip. No GPU needed.

libcupti (CUDA 13.0, the release of ncu 2025.3.1) knows all chips by name: which metrics they have, and in how
many passes a set of them can be collected. Its lists of names are those of `ncu --query-metrics`, name by name,
on the six chips that both were asked about.

    python tools/metric_passes.py /usr/local/cuda/lib64/libcupti.so.13            # rewrite the passes in chips.toml
    python tools/metric_passes.py LIBCUPTI --names tests/recordings/cupti-13.0-metrics-by-chip.tar.xz
"""

from __future__ import annotations

import argparse
import ctypes
import io
import itertools
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_perf_opt.metrics.groups import LEVELS, MetricGroups, all_groups

CHIPS = Path(__file__).parent.parent / "src" / "llm_perf_opt" / "metrics" / "chips.toml"
KINDS = ("counter", "ratio", "throughput")  # CUpti_MetricType
RANGE_PROFILER = 0  # CUpti_ProfilerType


def _structure(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    class Parameters(ctypes.Structure):
        _fields_ = (("structSize", ctypes.c_size_t), ("pPriv", ctypes.c_void_p), *fields)

    return Parameters


_STRINGS = ctypes.POINTER(ctypes.c_char_p)
_OBJECT = ("object", ctypes.c_void_p)
_Initialize = _structure(("type", ctypes.c_int), ("chip", ctypes.c_char_p), ("image", ctypes.c_void_p), _OBJECT)
_Deinitialize = _structure(_OBJECT)
_BaseMetrics = _structure(_OBJECT, ("kind", ctypes.c_int), ("names", _STRINGS), ("count", ctypes.c_size_t))
_AddMetrics = _structure(_OBJECT, ("names", _STRINGS), ("count", ctypes.c_size_t))
_ImageSize = _structure(_OBJECT, ("size", ctypes.c_size_t))
_Image = _structure(_OBJECT, ("size", ctypes.c_size_t), ("image", ctypes.c_void_p))
_Passes = _structure(("size", ctypes.c_size_t), ("image", ctypes.c_void_p), ("passes", ctypes.c_size_t))


class Cupti:
    """The host part of CUPTI's range profiler (cupti_profiler_host.h)."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def names(self, chip: str) -> dict[str, str]:
        """Base names of all metrics of a chip, each with its kind."""
        found = {}
        with self._chip(chip) as chip_object:
            for number, kind in enumerate(KINDS):
                asked = self._call("GetBaseMetrics", _BaseMetrics(object=chip_object, kind=number))
                found.update({asked.names[i].decode(): kind for i in range(asked.count)})
        return found

    def passes(self, chip: str, metrics: Sequence[str]) -> int:
        """Passes that collect all of these metrics."""
        with self._chip(chip) as chip_object:
            names = (ctypes.c_char_p * len(metrics))(*(m.encode() for m in metrics))
            self._call("ConfigAddMetrics", _AddMetrics(object=chip_object, names=names, count=len(metrics)))
            size = self._call("GetConfigImageSize", _ImageSize(object=chip_object)).size
            image = ctypes.create_string_buffer(size)
            address = ctypes.addressof(image)
            self._call("GetConfigImage", _Image(object=chip_object, size=size, image=address))
            return int(self._call("GetNumOfPasses", _Passes(size=size, image=address)).passes)

    @contextmanager
    def _chip(self, chip: str) -> Iterator[int]:
        made = self._call("Initialize", _Initialize(type=RANGE_PROFILER, chip=chip.upper().encode()))
        try:
            yield made.object
        finally:
            self._call("Deinitialize", _Deinitialize(object=made.object))

    def _call(self, function: str, parameters: Any) -> Any:
        parameters.structSize = ctypes.sizeof(parameters)
        code = getattr(self._library, f"cuptiProfilerHost{function}")(ctypes.byref(parameters))
        if code:
            raise RuntimeError(f"cuptiProfilerHost{function} answered {code} (see cupti_result.h)")
        return parameters


class Scheduler:
    """Passes of the levels of one architecture."""

    def __init__(self, cupti: Cupti, groups: MetricGroups) -> None:
        self._cupti, self._groups = cupti, groups
        self._known: dict[tuple[str, frozenset[str]], int] = {}

    def passes(self, level: str, types: Sequence[str] = ()) -> int:
        key = (level, frozenset(types))
        if key not in self._known:
            at = LEVELS.index(level)
            names = [
                m.name
                for m in self._groups.metrics
                if LEVELS.index(m.level) <= at and (m.data_type is None or m.data_type in types)
            ]
            self._known[key] = self._cupti.passes(self._groups.chip, names)
        return self._known[key]

    def row(self, level: str) -> str:
        """One line of `passes`: of each type the passes alone, and what it adds beside others at the most."""
        types = self._groups.data_types
        cells = [f"none = {self.passes(level)}"]
        for added in types if level != "time" else ():
            others = [t for t in types if t != added]
            # Pairs of others only where it is cheap to ask; beyond, one other type shows the same.
            sizes = (1, 2) if level == "roofline" else (1,)
            company = [c for size in sizes for c in itertools.combinations(others, size)]
            more = max((self.passes(level, (*c, added)) - self.passes(level, c) for c in company), default=0)
            cells.append(f"{added} = [{self.passes(level, (added,))}, {max(more, 0)}]")
        return f"{level} = {{ {', '.join(cells)} }}"


def rewrite(cupti: Cupti, groups: MetricGroups) -> bool:
    """Put fresh passes of one architecture into chips.toml; True where something changed."""
    text = CHIPS.read_text(encoding="utf-8")
    scheduler = Scheduler(cupti, groups)
    before, heading, after = text.partition(f"[{groups.architecture}.passes]\n")
    rest = re.sub(rf"\A(?:(?:{'|'.join(LEVELS)}) = .*\n)*", "", after)
    fresh = before + heading + "".join(f"{scheduler.row(level)}\n" for level in LEVELS) + rest
    CHIPS.write_text(fresh, encoding="utf-8")
    return fresh != text


def write_names(cupti: Cupti, target: Path, chips: Sequence[str]) -> None:
    """All names of some chips, one file each: `name kind` a line."""
    with tarfile.open(target, "w:xz") as archive:
        for chip in chips:
            lines = "".join(f"{name} {kind}\n" for name, kind in sorted(cupti.names(chip).items())).encode()
            info = tarfile.TarInfo(f"{chip}.txt")
            info.size = len(lines)
            archive.addfile(info, io.BytesIO(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libcupti", help="libcupti.so.13 of CUDA 13.0 (another release may schedule differently)")
    parser.add_argument("--only", metavar="ARCHITECTURE", help="rewrite one architecture, as in sm_90")
    parser.add_argument("--names", type=Path, metavar="FILE", help="write the names of all chips instead")
    arguments = parser.parse_args()
    cupti = Cupti(arguments.libcupti)
    chosen = [g for g in all_groups() if arguments.only in (None, g.architecture)]
    if arguments.names:
        write_names(cupti, arguments.names, [g.chip for g in chosen])
        return 0
    for groups in chosen:
        print(f"{groups.architecture}: {'changed' if rewrite(cupti, groups) else 'as before'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

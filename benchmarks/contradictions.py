"""Sentences and fields of reports that the recording itself contradicts: one list over all recordings.

    python benchmarks/contradictions.py [--shared DIR] [--only TEXT] [--parts]

Every report is read as its reader sees it: the JSON, and the words of answer, stages and sentences. A check knows one
way in which two statements of one report, or a statement and a count of the file, cannot both be true. `--parts`: also
of each timeline what is left where some layer was not recorded, and its middle third. Exit code 1: there are some. `tests/test_contradictions.py` holds the recordings of the repository to it.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.accounting import account_line
from llm_perf_opt.report.answer import answer
from llm_perf_opt.report.json_report import as_json
from llm_perf_opt.report.text import duration
from llm_perf_opt.report.view import view_of
from recording_parts import cut

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
RECORDINGS = ROOT / "tests" / "recordings"
ENDS = (".sqlite", ".sqlite.xz", ".sqlite.gz", ".json.gz", ".ncu-rep", ".ncu-rep.xz", ".csv")
_WORK_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")
LAYERS = (  # categories of PyTorch traces, old and new, and tables of nsys
    ("cpu_op", "Operator", "NVTX_EVENTS"),
    ("cuda_runtime", "cuda_driver", "Runtime", "CUPTI_ACTIVITY_KIND_RUNTIME"),
    ("python_function", "user_annotation"),
    (
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "Kernel",
        "Memcpy",
        "Memset",
        *(f"CUPTI_ACTIVITY_KIND_{t}" for t in _WORK_TABLES),
    ),
    ("gpu_memcpy", "Memcpy", "CUPTI_ACTIVITY_KIND_MEMCPY"),
    ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "Operator", "Runtime", "NVTX_EVENTS"),
)
NO_RECORDINGS = ("nvtx_kern_sum", "kern_sum", "transcript")

_SLACK = 1.001
_NEAR_NO_ROOF = 80.0  # % of the peak of any unit, from which on "near no roof" is wrong
_FAR_FROM_DRAM = 40.0  # %, below which it is not the memory's bandwidth that limits
_COVER = 0.9
Region = dict[str, Any]
Check = Callable[[Region], Iterator[str]]


def contradictions(report: NCUProfileRegionReport) -> Iterator[str]:
    """What cannot be true of a report, each with the region or the part it is in."""
    found = as_json(report)
    yield from _numbers(found)
    yield from _answer(found)
    for scope in found["scopes"]:
        for region in scope["regions"]:
            for check in (_times, _verdict, _gains, _families, _idle, _work):
                yield from (f"{scope['scope']} {region['key']}: {what}" for what in check(region))
    yield from _sentences(report, found)
    yield from _coverage(report, found)


def _value(quantity: Any) -> float | None:
    return None if quantity is None else float(quantity["value"])


def _split(region: Region) -> dict[str, Any]:
    return (region.get("performance") or {}).get("time") or {}


# -- fields -------------------------------------------------------------------------------------------


def _numbers(part: Any, path: str = "") -> Iterator[str]:
    """No number that is none, and no negative time."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _numbers(value, f"{path}.{name}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from _numbers(value, f"{path}[{number}]")
    elif isinstance(part, float) and not math.isfinite(part):
        yield f"{path} is {part}"
    elif isinstance(part, int | float) and path.endswith("_ns") and not path.endswith("offset_ns") and part < 0:
        yield f"{path} is negative: {part}"


def _times(region: Region) -> Iterator[str]:
    """Working and idle time are the whole; waiting is what is idle; work of a region fits into its time."""
    split = _split(region)
    wall, busy, idle = (_value(split.get(name)) for name in ("wall", "busy", "idle"))
    if wall and idle is not None and not 0 <= idle <= wall * _SLACK:
        yield f"idle for {idle:.0f} ns of {wall:.0f}"
    if wall and busy and idle is not None and split.get("basis") == "gpu" and busy + idle > wall * _SLACK:
        yield f"busy {busy:.0f} and idle {idle:.0f} are more than {wall:.0f}"
    light = (region.get("performance") or {}).get("speed_of_light") or {}
    now, limit, waiting = (_value(light.get(name)) for name in ("now", "limit", "waiting"))
    if wall and idle and waiting == 0 and idle > 0.01 * wall:
        yield f"waits 0, and is idle for {idle:.0f} ns"
    if now is not None and limit is not None and limit > now * _SLACK:
        yield f"the limit {limit:.0f} is above the time {now:.0f}"
    kernels, time = region["inclusive"]["kernel_count"], region["inclusive"]["gpu_time_ns"]
    if not kernels and time:
        yield f"{time} ns of GPU time in no kernel"
    timing = region.get("timing") or {}
    steady = timing.get("steady") or {}
    if (
        steady.get("instances")
        and steady["median_ns"]
        and not steady["p10_ns"] <= steady["median_ns"] <= steady["p90_ns"]
    ):
        yield "the median is not between the tenth and the ninetieth percentile"


def _verdict(region: Region) -> Iterator[str]:
    performance = region.get("performance")
    if performance is None:
        return
    split = _split(region)
    wall, idle = _value(split.get("wall")), _value(split.get("idle"))
    for verdict in (performance["verdict"], performance["gpu_verdict"]):
        bound, text = verdict["bound"], f"{verdict['text']} {verdict['advice']}"
        if bound in ("launch", "host") and wall and idle is not None and idle < 0.3 * wall and split["launches"]:
            yield f"{bound}, and idle for {100 * idle / wall:.0f} % alone"
        if bound == "gpu" and wall and idle is not None and idle > 0.4 * wall:
            yield f"GPU-bound, and idle for {100 * idle / wall:.0f} %"
        if "Nothing was launched" in text and split["launches"]:
            yield "nothing was launched, and there are kernels"
        yield from _near_roofs(performance, bound)
        memory = region["inclusive"]["memory"]
        if re.search(r"pinned|\bpin\b", text) and memory["pinned_time_ns"] and not memory["pageable_time_ns"]:
            yield "asks for pinned memory, and all copies have it"
    for one in performance["opportunities"]:
        memory = region["inclusive"]["memory"]
        if one["rule"] == "copy.pinned" and not memory["pageable_time_ns"]:
            yield "copy.pinned without a copy of pageable memory"
        if one["rule"] in ("copy.host", "copy.pinned") and memory["count"] and not memory["host_count"]:
            yield f"{one['rule']} without a copy between host and GPU"


def _near_roofs(performance: dict[str, Any], bound: str) -> Iterator[str]:
    if bound not in ("latency", "dram"):
        return
    for one in performance["signatures"][:3]:
        shares = {name: 100 * share for name, share in one["shares"].items()}
        if one["bound"] == "latency" and (high := {n: s for n, s in shares.items() if s >= _NEAR_NO_ROOF}):
            yield f"{one['short_name']} is near no roof, beside {high}"
        if one["bound"] == "dram" and shares.get("dram", 100.0) < _FAR_FROM_DRAM:
            yield f"{one['short_name']} is at the memory's bandwidth, of which it reaches {shares['dram']:.0f} %"


def _gains(region: Region) -> Iterator[str]:
    """Together no more than there is, and each no more than what it is about."""
    performance = region.get("performance") or {}
    light = performance.get("speed_of_light")
    found = performance.get("opportunities", ())
    if not light or not found:
        return
    now, gains = _value(light["now"]) or 0.0, [_value(one["recoverable"]) or 0.0 for one in found]
    if sum(gains) > now * _SLACK:
        yield f"gains of {sum(gains):.0f} ns of {now:.0f}"
    for one, gain in zip(found, gains, strict=True):
        if gain > (_value(one["time"]) or 0.0) * _SLACK:
            yield f"{one['rule']} wins {gain:.0f} of {_value(one['time']):.0f} ns"


def _families(region: Region) -> Iterator[str]:
    performance = region.get("performance") or {}
    shares = [one["share"] or 0.0 for one in performance.get("families", ())]
    if sum(shares) > _SLACK:
        yield f"families are {100 * sum(shares):.0f} % of the time"


def _idle(region: Region) -> Iterator[str]:
    """Causes of idle time are parts of it."""
    idle = (region.get("performance") or {}).get("idle")
    if not idle:
        return
    parts = sum(cause["time_ns"] for cause in idle["causes"])
    if parts > idle["total_ns"] * _SLACK + 1000:
        yield f"causes of {parts} ns idle, of {idle['total_ns']}"
    whole = _value(_split(region).get("idle"))
    if whole is not None and idle["total_ns"] > whole * 1.02 + 1000:
        yield f"{idle['total_ns']} ns of gaps, and idle for {whole:.0f}"


def _work(region: Region) -> Iterator[str]:
    """0 is what was counted and is none; what nobody counted is not known."""
    work = (region.get("performance") or {}).get("work") or {}
    counted = set(region["inclusive"]["metrics"])
    for name, words in (("flops", "op|inst"), ("dram", "dram")):
        if _value(work.get(name)) == 0 and not any(re.search(words, metric) for metric in counted):
            yield f"{name} is 0, and nothing of it was counted"
    tokens = (region.get("performance") or {}).get("tokens")
    if tokens and not tokens["source"]:
        yield "tokens per second, and nothing said of whose"


# -- the answer and its words -------------------------------------------------------------------------


def _answer(found: dict[str, Any]) -> Iterator[str]:
    said = found["answer"]
    if not said["stage"]:
        return
    own = [fix for fix in said["fixes"] if fix["stage"] == said["stage"]]
    if said["fixes"] and own and said["fixes"][0]["stage"] != said["stage"]:
        yield f"answer: the stage is {said['stage']}, the first fix is of {said['fixes'][0]['stage']}"
    whole: dict[str, float] = {}
    for fix in (one for found_here in said["fixes"] for one in (found_here, *found_here["also"])):
        whole[fix["stage"]] = whole.get(fix["stage"], 0.0) + fix["gain_share"]
    yield from (f"answer: gains of {stage} are {100 * sum_:.0f} %" for stage, sum_ in whole.items() if sum_ > _SLACK)
    if said["verdict"] == "unknown" and "Cannot tell" not in said["why"]:
        yield "answer: unknown, and not said so"
    if said["verdict"] != "unknown" and "Cannot tell" in said["why"].split(". ")[0]:
        yield f"answer: {said['verdict']}, and it says that it cannot tell"
    for line in (said["where"], said["why"], said["do_first"]):
        if re.search(r"\bnan\b|\bNone\b|\binf\b|\{\w+\}", line):
            yield f"answer: {line}"
    chosen = [r for s in found["scopes"] for r in s["regions"] if r["key"] == said["stage"]]
    if not chosen:
        yield f"answer: {said['stage']} is no region of the report"


def _sentences(report: NCUProfileRegionReport, found: dict[str, Any]) -> Iterator[str]:
    """What is said of a region by name is what its fields say."""
    said = answer(report)
    for sentence in said:
        for match in re.finditer(r"(\d[\d,.]*) %", sentence):
            if float(match.group(1).replace(",", "")) > 100.05:
                yield f"more than all: {sentence}"
        if re.search(r"\bnan\b|\binf\b|\bNone\b", sentence):
            yield f"no number: {sentence}"
    main = report.main_scope
    for region in main.regions if main is not None else ():
        mine = [s for s in said if s.startswith(f"{region.name}: ")]
        if len(mine) != 1 or region.wall_ns is None or sum(r.name == region.name for r in main.regions) > 1:
            continue
        match = re.search(r"([\d.,]+ \S+) wall time", mine[0])
        own = {duration(region.wall_ns)}
        if region.timing is not None:
            own.add(duration(region.timing.steady.total_ns))
        if match and match.group(1) not in own and "without" not in mine[0]:
            yield f"{region.key} takes {duration(region.wall_ns)}, and the sentence is: {mine[0]}"


def _coverage(report: NCUProfileRegionReport, found: dict[str, Any]) -> Iterator[str]:
    """Stages hold the time, or what they leave out is said."""
    main = report.main_scope
    if main is None or not report.stages or not main.totals.recorded_ns:
        return
    regions = {region.key: region for region in main.regions}
    if any(regions[key].is_whole_recording for key in report.stages):
        return
    # Ranges that end before their work: what they hold of that is what counts.
    if any(of.time.basis == "gpu" for key in report.stages if (of := regions[key].performance) is not None):
        kernels = sum(regions[key].inclusive.gpu_time_ns or 0 for key in report.stages)
        if kernels >= _COVER * (main.totals.gpu_time_ns or 0):
            return
    held = sum(regions[key].wall_ns or 0 for key in report.stages if key in regions)
    ranks = len(report.ranks.ranks) if report.ranks is not None else 1  # stages have the times of one, side by side
    if held * ranks < _COVER * main.totals.recorded_ns and not account_line(view_of(report)):
        yield f"the stages hold {100 * held / main.totals.recorded_ns:.0f} % of the time, and nothing is said of the rest"


# -- all recordings -----------------------------------------------------------------------------------


def recordings(shared: Path) -> list[Path]:
    """All that the repository has, and all beside it."""
    folders = (RECORDINGS, shared / "h200", shared / "public")
    files = [path for folder in folders if folder.exists() for path in sorted(folder.iterdir())]
    return [p for p in files if p.name.endswith(ENDS) and not any(word in p.name for word in NO_RECORDINGS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="where the recordings beside the repository are")
    parser.add_argument("--only", default="", help="recordings whose name has this text")
    parser.add_argument("--parts", action="store_true", help="parts of the timelines, too")
    arguments = parser.parse_args()
    count = read = 0
    for path in recordings(arguments.shared):
        if arguments.only not in path.name:
            continue
        for part in (None, *(_parts(path) if arguments.parts else ())):
            found = _of_part(path, part)
            count, read = count + len(found), read + 1
            for what in found:
                print(f"{path.name}{'' if part is None else f' {part}'}: {what}", flush=True)
    print(f"{count} contradictions in {read} recordings")
    return int(count > 0)


def _parts(path: Path) -> list[dict[str, Any]]:
    if ".sqlite" not in path.name and ".json" not in path.name:
        return []
    return [*({"without": list(layer)} for layer in LAYERS), {"window": [0.01, 0.1]}]


def _of_part(path: Path, part: dict[str, Any] | None) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            chosen = path if part is None else cut(path, part, Path(folder))
            return list(contradictions(make_report([str(chosen)], ReportOptions(), quiet=True)))
        except UserError as error:
            print(f"{path.name}: not read: {error}", flush=True)
            return []


if __name__ == "__main__":
    raise SystemExit(main())

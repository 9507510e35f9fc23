"""Has nsys sample what the GPUs move while it records a timeline: the same run, and hardly more of it.

nsys's own sets of GPU metrics give bandwidths as whole per cents of the peak, which loses most of a program that
leaves the GPU waiting; a set of one's own gives bytes, exactly. Sampling needs the same permission as ncu's counters,
and the hardware can do it for one profiler at a time: where it cannot be had, the timeline is taken without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs
from attrs import define

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.files import write_text
from llm_perf_opt.metrics.groups import groups_of_chip
from llm_perf_opt.nsight.nsys import TRAFFIC_SET
from llm_perf_opt.nsight.nsys.argv import NsysOptions
from llm_perf_opt.nsight.tools import Tool, known_options, said_about_sampling
from llm_perf_opt.readers.nsys_traffic import UNIT
from llm_perf_opt.regions.names import printable
from llm_perf_opt.regions.traffic import COUNTERS, ROLES

DEFAULT_HZ = 10_000  # nsys's own; the hardware keeps up with it for any set
_NAME = Path(TRAFFIC_SET).stem  # nsys wants a set to be called like its file
_GPU = re.compile(r"^\s*(?P<number>\d+): (?P<architecture>.+) (?P<chip>[A-Z]{2}\w+) \| (?P<name>.+)$", re.MULTILINE)
_FROM_FILE = "file:<"
_OF_SAMPLING = re.compile("gpu.metrics", re.IGNORECASE)
_REASON = re.compile(r"^.+ \| .+ - (?P<why>.+)$", re.MULTILINE)  # of each GPU that cannot be sampled


@define(frozen=True)
class RankOnNode:
    """A rank of a job, whose GPU is to be sampled and no other's: nsys is started once for each rank.

    A GPU can be sampled by one profiler at a time, and its samples hold the work of all who use it. So it must be clear
    which GPU is this rank's alone.
    """

    local: int | None  # its rank on its node; None: nobody says
    ranks: int | None  # on the node
    visible: str = ""  # CUDA_VISIBLE_DEVICES
    gpu_is_own: bool = False  # the launcher says that it gives each rank its GPU

    def gpu(self, listed: Sequence[int]) -> str | None:
        """What to ask nsys for; None where the rank may share its GPU. `listed`: the numbers that nsys has for them."""
        chosen = [word for word in self.visible.split(",") if word]
        if self.ranks == 1 or self.gpu_is_own:
            return "cuda-visible"
        if self.local is None or self.ranks is None:
            return None
        numbers = [int(word) for word in chosen if word.isdecimal()] if chosen else sorted(listed)
        enough = self.local < self.ranks <= len(numbers) and len({*numbers}) == (len(chosen) or len(listed))
        return str(numbers[self.local]) if enough and numbers[self.local] in listed else None


@define
class Sampling:
    """nsys's options with sampling, or without and why."""

    options: NsysOptions
    why_not: Diagnosis | None = None


def with_sampling(options: NsysOptions, nsys: Tool, folder: Path, hz: int, rank: RankOnNode | None = None) -> Sampling:
    """Ask nsys for samples of the GPUs that the program sees. The set is written into `folder`, which is made.

    `rank`: it is one of several that are recorded, each by an nsys of its own.
    """
    if hz <= 0 or any("gpu-metrics" in argument for argument in options.extra_args):  # no wish, or wishes of one's own
        return Sampling(options)
    if why_not := cannot_sample(nsys):
        return Sampling(options, diagnose("TRAFFIC_NOT_SAMPLED", why=why_not))
    devices, _ = said_about_sampling(nsys)
    chosen: str | None = "cuda-visible" if "cuda-visible" in devices else "all"
    if rank is not None:
        chosen = rank.gpu([int(found["number"]) for found in _GPU.finditer(devices)])
    if chosen is None:
        return Sampling(options, diagnose("TRAFFIC_NOT_SAMPLED.shared"))
    folder.mkdir(exist_ok=True)
    file = folder / TRAFFIC_SET
    write_text(file, metric_set(_chips(devices)))
    asked = attrs.evolve(
        options, gpu_metrics_devices=chosen, gpu_metrics_set=f"file:{file.resolve()}", gpu_metrics_frequency=str(hz)
    )
    return Sampling(asked)


def cannot_sample(nsys: Tool) -> str:
    """Why this nsys can sample no GPU; empty where it can."""
    if not {"--gpu-metrics-devices", "--gpu-metrics-set", "--gpu-metrics-frequency"} <= set(known_options(nsys)):
        return f"{nsys} has no options for that"
    devices, sets = said_about_sampling(nsys)
    if _FROM_FILE not in sets:
        return f"{nsys} takes no set of metrics from a file"
    return "" if _chips(devices) else f"nsys cannot sample any GPU: {_reason(devices)}"


def _chips(devices: str) -> list[str]:
    """The chips of the GPUs that nsys lists as ones it can sample."""
    return sorted({found["chip"] for found in _GPU.finditer(devices)})


def without_sampling(options: NsysOptions) -> NsysOptions:
    """The same options for a timeline alone."""
    return attrs.evolve(options, gpu_metrics_devices=None, gpu_metrics_set=None, gpu_metrics_frequency=None)


def refused(output: str) -> Diagnosis | None:
    """What to say where nsys did not start the program because it could not sample; None where it says nothing of that."""
    if not _OF_SAMPLING.search(output):
        return None
    return diagnose("TRAFFIC_NOT_SAMPLED", why=f"nsys refused it: {_reason(output)}")


def counters_of(chips: Sequence[str]) -> list[str]:
    """The counters of some chips, by the names they have there."""
    found: dict[str, None] = {}
    for groups in [groups_of_chip(chip) for chip in chips]:
        own = {m.role: m.name for m in groups.of_level("roofline")} if groups is not None else {}
        found.update(dict.fromkeys(own.get(role, names[0]) for role, names in ROLES.items()))
    return [name for name in found if name in COUNTERS]


def metric_set(chips: Sequence[str]) -> str:
    """The set, as nsys's own files have theirs (YAML; no name in it comes from outside but those of the chips)."""
    counters = counters_of(chips)
    rows = "".join(f"  - name: {name}\n    type: overlay\n    metrics:\n    - {name}\n" for name in counters)
    metrics = "".join(
        f"  - name: {name}\n    id: {name.removesuffix('.sum')}\n    description: {name}\n    color: '#98C4DD'\n"
        f"    subMetrics:\n    - name: {UNIT}\n      suffix: .sum\n"
        for name in counters
    )
    head = (
        f"version: 5\nmetricSets:\n- alias: {_NAME}\n  name: bytes moved, for llm-perf\n  chips: [{', '.join(chips)}]\n"
    )
    return f"{head}  displayRows:\n{rows}  metrics:\n{metrics}"


def _reason(output: str) -> str:
    """What nsys says of the GPUs, or all it says, in short."""
    reasons = dict.fromkeys(found["why"] for found in _REASON.finditer(output))
    return printable(" ".join("; ".join(reasons).split() or output.split()))[:200].rstrip(". ") or "it said nothing"

"""What no recording of a real program holds, whatever the format.

Work grows with the number of processes, devices and domains as well as with that of kernels: a small file that
names a different GPU for every kernel would keep a machine busy for days. Such files are damaged, or made for it.
"""

from __future__ import annotations

import re
from typing import Any

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.distinct import distinct

MOST_DEVICES = 64  # of one recording; a machine has sixteen, or a few dozen parts of GPUs
MOST_PROCESSES = 128  # of one recording, that used a GPU
MOST_DOMAINS = 256
MOST_CELLS = 400_000_000  # kernels times domains
LARGEST_DEVICE = 2**31 - 1
LARGEST_FACT = 2**53  # bytes, hertz, counts: a float holds them exactly
_TEXTS = {
    "name": re.compile(r".{1,300}", re.DOTALL),
    "uuid": re.compile(r".{1,300}", re.DOTALL),
    "compute_capability": re.compile(r"\d{1,3}\.\d{1,3}"),
}
LONGEST_NAME = 16_384  # characters; the longest kernel seen has nine thousand


def shortened(name: str) -> str:
    """A name of a length that can be repeated in a report."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}… ({len(name):,} characters)"


def plausible_facts(facts_of: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Attributes of GPUs without those that can be none: a few are texts, all else is a number above 0."""
    found = {}
    for device, facts in facts_of.items():
        if 0 <= device <= LARGEST_DEVICE:
            found[device] = {name: value for name, value in facts.items() if _is_plausible(name, value)}
    return found


def _is_plausible(name: str, value: object) -> bool:
    if name in _TEXTS:
        return isinstance(value, str) and _TEXTS[name].fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST_FACT


def refuse_implausible(timeline: Timeline) -> None:
    """Raise `UnreadableInput` where a timeline names more things than there can be."""
    works = (timeline.kernels, timeline.copies, timeline.graphs)
    devices = {int(d) for work in works for d in distinct(work.device)[: MOST_DEVICES + 1]}
    processes = {int(p) for work in works for p in distinct(work.process)[: MOST_PROCESSES + 1]}
    kernels, domains = len(timeline.kernels), len(timeline.domains)
    for count, most, what in (
        (max(len(devices), len(timeline.gpu_facts)), MOST_DEVICES, "GPUs"),
        (len(processes), MOST_PROCESSES, "processes on the GPU"),
        (domains, MOST_DOMAINS, "NVTX domains"),
        (domains, max(MOST_CELLS // max(kernels, 1), 16), f"NVTX domains for {kernels:,} kernels"),
    ):
        if count > most:
            raise UnreadableInput(
                f"{timeline.source} is damaged: it names more than {most} {what}.", "Copy or record it again."
            )

"""What ncu's details page calls sections and metrics, and what the rest of ncu calls them (`ncu_labels.toml`)."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from llm_perf_opt.package_data import read_toml

STATIC_SHARED = "launch__shared_mem_per_block_static"
DYNAMIC_SHARED = "launch__shared_mem_per_block_dynamic"
_ASKED_ONE_BY_ONE = "Command line profiler metrics"  # stands where a section would, and is none
_LABEL_AND_NAME = re.compile(r".* \(([a-z]\w*_[\w.:]*)\)")
# Sections that describe the launch or the machine, whatever their labels: nothing in them is a counter.
_DESCRIPTIVE_SECTIONS = frozenset(("LaunchStats", "NumaAffinity", "Nvlink_Topology", "PmSampling"))


@cache
def _known() -> dict[str, dict[str, Any]]:
    return read_toml(__package__, "ncu_labels.toml")


def section_identifier(title: str) -> str:
    """The identifier of a section. Rows of rules print it, rows of metrics print the title."""
    return "" if title == _ASKED_ONE_BY_ONE else _known()["sections"].get(title, title)


def metric_name(section: str, body: str, label: str) -> str | None:
    """The metric behind a label; None where the section holds no counters."""
    identifier = _known()["sections"].get(section, section)
    if "__" in label and " " not in label:
        return label
    if both := _LABEL_AND_NAME.fullmatch(label):
        return both[1]
    labels: dict[str, str] = _known()["labels"].get(identifier, {})
    if not body and label in labels:
        return labels[label]
    if identifier in _DESCRIPTIVE_SECTIONS:
        return None
    return "/".join(part for part in (section, body, label) if part)

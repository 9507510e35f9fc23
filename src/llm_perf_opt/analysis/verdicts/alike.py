"""Stages that differ in a number alone (`layers.0`, `layers.1`): each keeps its name, and what they take together is told."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_perf_opt.regions.labels import full_label
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.ranking import all_steady_time

_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,4}(?![0-9])")


def common_name(stage: NCUProfileRegion) -> str:
    """With a star for each number."""
    return _NUMBER.sub("*", full_label(stage))


def alike(stage: NCUProfileRegion, stages: Sequence[NCUProfileRegion]) -> list[NCUProfileRegion]:
    """The stages of that name which are held up by the same; the stage itself where there are no others."""
    kind = common_name(stage), _bound(stage)
    return [one for one in stages if (common_name(one), _bound(one)) == kind]


def together(stages: Sequence[NCUProfileRegion]) -> float:
    return sum(all_steady_time(stage) or 0 for stage in stages)


def _bound(stage: NCUProfileRegion) -> str:
    return stage.performance.verdict.bound if stage.performance is not None else ""

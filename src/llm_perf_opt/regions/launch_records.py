"""Single launches that were picked by hand: part of the finished result (`model.py`)."""

from __future__ import annotations

from attrs import Factory, define


@define(frozen=True)
class LaunchCounter:
    """One counter of one launch."""

    value: float
    unit: str


@define(frozen=True)
class ProfiledLaunch:
    """One launch that was picked by hand, with its kernel's place in the timeline."""

    kernel_name: str
    short_name: str
    grid: list[int]
    block: list[int]
    device: int | None
    regions: list[str]  # keys of the innermost ranges open at the launch
    rank: int | None  # 1: no kernel of the program takes more GPU time; None: there is no timeline
    kernels_ranked: int
    share_of_gpu_time: float | None
    calls: int | None  # in the timeline
    total_ms: float | None
    mean_ms: float | None
    passes: int | None
    metrics: dict[str, LaunchCounter] = Factory(dict)

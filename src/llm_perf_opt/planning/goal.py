"""What the user wants of the counters, checked."""

from __future__ import annotations

import re

from attrs import define

from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics import DEFAULT_LEVEL, checked_level

_EVERY = re.compile(r"every:(\d+)")


@define(frozen=True, kw_only=True)
class Request:
    """Settings of a plan."""

    level: str = DEFAULT_LEVEL
    metrics: tuple[str, ...] = ()  # chosen by hand, in place of a level
    # For all captures together; the timeline has been paid for already. None: one capture, however long.
    budget_s: float | None = None
    program_s: float = 0.0  # how long the program runs; under nsys is near enough
    launches: int = 3  # of each signature, at the most
    top_n: int | None = None  # kernels, by time; None: all
    sample: str = "all"  # all | first | middle | last | every:N, over the instances of a repeated range
    model_type: str | None = None  # what the model computes in, where told
    least_coverage: float = 0.9  # of the GPU time: before going below, a lower level is taken
    target_error: float = 0.02  # above it, further captures are made where the budget allows
    # Filters of ncu whose effect has not been seen yet (`filters.Assumption`), where others would do.
    use_untried: bool = False

    def __attrs_post_init__(self) -> None:
        checked_level(self.level)
        chosen_instances(self.sample, 1)
        for name in ("launches", "top_n"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be 1 or more, not {value}.", "Leave it out for the default.")


def chosen_instances(sample: str, count: int) -> tuple[int, ...]:
    """Numbers of the instances that a `sample` setting means, of `count`; empty for all of them."""
    if sample == "all":
        return ()
    simple = {"first": 1, "middle": (count + 1) // 2, "last": count}
    if sample in simple:
        return (simple[sample],)
    every = _EVERY.fullmatch(sample)
    if every is None or int(every[1]) < 1:
        raise UserError(
            f"sample={sample} is not known.", "Choose all, first, middle, last, or every:N as in every:4 (1, 5, 9 …)."
        )
    return tuple(range(1, count + 1, int(every[1])))

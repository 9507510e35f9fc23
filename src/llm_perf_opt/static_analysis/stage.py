"""What a workload hands over for static analysis: one callable a stage. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable

from attrs import Factory, define, field, validators


@define(frozen=True)
class StageWork:
    """What one run of a stage is given, as far as the closed formulas need it; all counts are of one sequence."""

    batch: int = field(validator=validators.ge(1))  # sequences
    new_tokens: int = field(validator=validators.ge(1))  # the prompt, 1 for a decode step, patches for a vision encoder
    cached_tokens: int = field(default=0, validator=validators.ge(0))  # tokens in the cache before the run
    head_positions: int = field(default=0, validator=validators.ge(0))  # positions the output head is applied to
    part: str = field(default="text", validator=validators.in_(("text", "vision")))  # of a vision-language model

    @property
    def tokens(self) -> int:
        """New tokens of the whole batch."""
        return self.batch * self.new_tokens


@define(frozen=True)
class StaticStage:
    """One stage: a callable that runs its forward once, with weights and inputs on torch's meta device.

    For decode, `run` is one step at the middle context length and `repeats` the number of steps: the work of
    a step grows linearly with the context, so the middle step times the number of steps is the whole.
    """

    name: str
    run: Callable[[], object]  # can be called again and again
    repeats: int = field(default=1, validator=validators.ge(1))
    # What the shapes are, as far as the stage likes to say: `batch`, `tokens` (new ones, of each sequence),
    # `context` (tokens attended to, the new ones among them), and whatever else a reader should see.
    shape: dict[str, int] = Factory(dict)
    # The same, complete. None: taken from `shape` and from the operators that were seen.
    work: StageWork | None = None

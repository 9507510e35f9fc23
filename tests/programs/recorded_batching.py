"""What transformers' continuous batching itself says of each of its steps: another source than the annotation's.

A step is a list of its requests: tokens read, whether a token comes out, and how many had come out before.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from transformers.generation.continuous_batching import continuous_api

Request = tuple[int, int, int]


class Records:
    """Of all steps of this process, with the moments at which the first began and the last ended."""

    def __init__(self) -> None:
        self.steps: list[list[Request]] = []
        self.ended_ns: list[int] = []
        self.first_ns = 0

    def write(self, path: str | Path, made: int | None = None) -> None:
        """`made`: tokens that were handed out, by another count."""
        made = sum(new for step in self.steps for _, new, _ in step) if made is None else made
        seconds = (self.ended_ns[-1] - self.first_ns) / 1e9 if self.ended_ns else 0.0
        found = {"steps": self.steps, "made": made, "seconds": seconds}
        Path(path).write_text(json.dumps(found), encoding="utf-8")


def record() -> Records:
    """From now on: engines that are started later use a class that notes its steps."""
    records = Records()

    class Recorded(continuous_api.ContinuousBatchProcessor):
        def prepare_next_batch(self) -> bool:
            began = time.monotonic_ns()
            is_ready = bool(super().prepare_next_batch())
            if is_ready and not records.first_ns:
                records.first_ns = began
            return is_ready

        def update_batch(self) -> None:
            io = self.inputs_and_outputs
            io = io.io_pairs[io.current_pair].host_io if hasattr(io, "io_pairs") else io
            records.steps.append(
                [(r.query_length, int(r.has_new_token), r.state.generated_len()) for r in io.requests_in_batch]
            )
            super().update_batch()
            records.ended_ns.append(time.monotonic_ns())

    continuous_api.ContinuousBatchProcessor = Recorded
    return records

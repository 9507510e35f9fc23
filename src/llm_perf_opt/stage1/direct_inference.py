"""The dataset through the model with no profiler: predictions as JSON lines.

Every line is on the disk before the next batch begins, so that a run that is killed keeps what it did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads.datasets import Item, described
from llm_perf_opt.workloads.device import waiter
from llm_perf_opt.workloads.marks import paused
from llm_perf_opt.workloads.model_session import Session
from llm_perf_opt.workloads.watch import MarkingWatch


@define(frozen=True)
class Predicted:
    """What was written."""

    path: Path
    items: int
    tokens: int
    seconds: float


def predict(session: Session[Any], batches: Sequence[Sequence[Item]], output: Path) -> Predicted:
    """Run every batch once and write a line an item; no ranges, so that a profiler outside sees no second pass."""
    watch, wait = MarkingWatch(session.device), waiter(session.device)
    items = tokens = 0
    seconds = 0.0
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        file = output.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"Predictions cannot be written to {output}: {error.strerror}.",
            "Choose another file with pipeline.direct_inference.output.",
        ) from error
    with file, paused():
        for batch in batches:
            prepared = session.prepare(batch)
            wait()
            start = time.perf_counter()
            result = session.run(prepared, watch)
            wait()
            took = time.perf_counter() - start
            for item, text, new in zip(batch, result.texts, result.tokens, strict=True):
                line = {
                    "input": described(item),
                    "output": text,
                    "tokens": len(new),
                    "seconds": round(took, 6),
                    "batch_size": len(batch),  # the seconds are those of the whole batch
                }
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            file.flush()
            items += len(batch)
            tokens += sum(len(new) for new in result.tokens)
            seconds += took
    return Predicted(output, items, tokens, seconds)

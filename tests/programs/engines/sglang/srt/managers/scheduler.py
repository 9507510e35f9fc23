"""New requests first, mixed with those that decode (`--enable-mixed-chunk`); prompts in pieces of so many tokens."""

import torch

from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner

CHUNK = 64


class Scheduler:
    def __init__(self) -> None:
        self.waiting_queue: list[Req] = []
        self.running_batch = ScheduleBatch()
        self.runner = ModelRunner()
        self.records: list[list[tuple[int, int, int]]] = []  # of each step: tokens read, made, made before

    def get_next_batch_to_run(self) -> ScheduleBatch | None:
        left, batch = CHUNK, ScheduleBatch(list(self.running_batch.reqs))
        for request in batch.reqs:
            request.now = 1
        for request in self.waiting_queue:
            request.now = min(request.prompt - request.read, left)
            left -= request.now
            batch.reqs += [request] if request.now else []
        return None if batch.is_empty() else batch

    def run_batch(self, batch: ScheduleBatch) -> list[int]:
        decodes = [request.made > 0 for request in batch.reqs]
        mode = ForwardMode.DECODE if all(decodes) else ForwardMode.MIXED if any(decodes) else ForwardMode.EXTEND
        tokens = sum(request.now for request in batch.reqs)
        extended = None if mode == ForwardMode.DECODE else tokens
        forward = ForwardBatch(mode, len(batch.reqs), torch.zeros(tokens, dtype=torch.long), extended)
        return self.runner.sample(self.runner.forward(forward), forward)

    def process_batch_result(self, batch: ScheduleBatch, result: list[int]) -> list[tuple[str, bool]]:
        """Which requests made a token, and whether it was their last."""
        made, record = [], []
        for request in batch.reqs:
            before = request.made
            request.read += 0 if before else request.now
            makes = before > 0 or request.read == request.prompt
            record.append((request.now, int(makes), before))
            if makes:
                request.made += 1
                made.append((request.name, request.made == request.wanted))
        self.records.append(record)
        self.waiting_queue = [request for request in self.waiting_queue if not request.made]
        self.running_batch.reqs = [r for r in batch.reqs if 0 < r.made < r.wanted]
        return made

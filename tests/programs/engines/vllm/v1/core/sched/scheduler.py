"""First come, first served, so many tokens a step: prompts are read in pieces beside requests that decode."""

from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

BUDGET = 64


@dataclass
class Request:
    name: str
    prompt: int
    wanted: int
    computed: int = 0
    made: int = 0


class Scheduler:
    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.seen: set[str] = set()
        self.records: list[list[tuple[int, int, int]]] = []  # of each step: tokens read, made, made before

    def schedule(self) -> SchedulerOutput:
        left, new, cached, tokens = BUDGET, [], CachedRequestData(), {}
        for request in sorted(self.requests.values(), key=lambda request: not request.made):
            count = min(1 if request.made else request.prompt - request.computed, left)
            if not count:
                break
            left -= count
            tokens[request.name] = count
            if request.name in self.seen:
                cached.req_ids.append(request.name)
                cached.num_computed_tokens.append(request.computed)
                cached.num_output_tokens.append(request.made)
            else:
                new.append(NewRequestData(request.name, [0] * request.prompt, request.computed))
                self.seen.add(request.name)
        return SchedulerOutput(new, cached, tokens, sum(tokens.values()))

    def update_from_output(self, scheduled: SchedulerOutput, sampled: Any) -> list[tuple[str, bool]]:
        """Which requests made a token, and whether it was their last."""
        made, record = [], []
        for name, count in scheduled.num_scheduled_tokens.items():
            request = self.requests[name]
            before = request.made
            request.computed += count
            makes = before > 0 or request.computed == request.prompt
            record.append((count, int(makes), before))
            if makes:
                request.made += 1
                made.append((name, request.made == request.wanted))
                if request.made == request.wanted:
                    del self.requests[name]
        self.records.append(record)
        return made

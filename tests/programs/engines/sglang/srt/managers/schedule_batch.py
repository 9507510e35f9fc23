"""Requests that run together."""

from dataclasses import dataclass, field


@dataclass
class Req:
    name: str
    prompt: int
    wanted: int
    read: int = 0
    made: int = 0
    now: int = 0  # tokens of it in the step under way


@dataclass
class ScheduleBatch:
    reqs: list[Req] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not self.reqs

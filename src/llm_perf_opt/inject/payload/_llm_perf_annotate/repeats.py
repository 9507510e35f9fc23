"""Calls of `generate()` that a trial makes again: a program that makes one or two has no warm one to be timed."""

from __future__ import annotations

from typing import Any


def can_be_repeated(kwargs: dict[str, Any]) -> bool:
    """Somebody reads what it streams, and a cache of the program's own would go on."""
    return all(kwargs.get(name) is None for name in ("past_key_values", "streamer"))


class Repeats:
    """Of one process."""

    def __init__(self, torch: Any, wanted: str) -> None:
        self._torch = torch
        self._after, self._times = map(int, wanted.split(":")) if wanted else (0, 0)  # which call, and how often

    def of_call(self, number: int, kwargs: dict[str, Any]) -> list[Any]:
        """What to make each of them in: the program's random numbers are left where they are."""
        if number != self._after or not can_be_repeated(kwargs):
            return []
        cuda = self._torch.cuda
        devices = [cuda.current_device()] if cuda.is_initialized() else []
        return [self._torch.random.fork_rng(devices) for _ in range(self._times)]

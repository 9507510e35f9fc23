"""How much of the program's time something may take: what is left of it grows with the clock and shrinks with use."""

from __future__ import annotations

from time import monotonic_ns

_LONGEST_NS = 2_000_000_000  # of time that counts: what was saved while a model loaded is not spent in its first steps


class Budget:
    """A share of the last seconds."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._most = self._left = share * _LONGEST_NS
        self._seen = monotonic_ns()

    def allows(self, now: int) -> bool:
        self._left = min(self._left + self._share * (now - self._seen), self._most)
        self._seen = now
        return self._left > 0

    def charge(self, since: int, *, twice: bool = False) -> int:
        """Pay for what was done since then, or for that and the same again later; the time now."""
        now = monotonic_ns()
        self._left -= (now - since) * (2 if twice else 1)
        return now

"""How much of the program's time something may take: whoever has used it up waits, in proportion to what it cost."""

from __future__ import annotations

from time import monotonic_ns

# Of time that may be spent at once: what a model took to load is not spent in its first steps, and a short program
# pays no more than a long one.
_AHEAD_NS = 500_000_000
_DEAREST_NS = 100_000  # of one event, or one look at the allocator


class Budget:
    """A share of the time. It is free to use from `next_at` on: to ask costs one comparison."""

    __slots__ = ("_paid_until", "_share", "next_at")

    def __init__(self, share: float) -> None:
        self._share = share
        self.next_at = self._paid_until = 0

    def charge(self, since: int, *, things: int = 1, twice: bool = False) -> int:
        """Pay for what was done since then, or for that and the same again later; the time now.

        `things`: so many were done. None is charged more than it can cost: the system may have given others a turn.
        """
        now = monotonic_ns()
        cost = min(now - since, things * _DEAREST_NS) * (2 if twice else 1)
        self._paid_until = max(self._paid_until, now) + round(cost / self._share)
        self.next_at = self._paid_until - _AHEAD_NS
        return now

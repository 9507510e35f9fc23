"""How much of the program's time something may take: whoever has used it up waits, in proportion to what it cost."""

from __future__ import annotations

from time import monotonic_ns

# Of time that may be spent at once: what a model took to load is not spent in its first steps, and a short program
# pays no more than a long one.
_AHEAD_NS = 500_000_000
_DEAREST_NS = 100_000  # of one event, or one look at the allocator


class Budget:
    """A share of the time. It is free to use from `next_at` on: to ask costs one comparison."""

    __slots__ = ("_paid_until", "_per", "next_at")

    def __init__(self, share: float) -> None:
        self._per = round(1 / share)
        self.next_at = self._paid_until = 0

    def charge(self, since: int, *, things: int = 1, times: int = 1) -> int:
        """Pay for what was done since then, so many times; the time now.

        `things`: so many were done. None is charged more than it can cost: the system may have given others a turn.
        """
        now = monotonic_ns()
        cost, paid = now - since, self._paid_until
        if cost > things * _DEAREST_NS:
            cost = things * _DEAREST_NS
        self._paid_until = paid = (paid if paid > now else now) + cost * times * self._per
        self.next_at = paid - _AHEAD_NS
        return now

"""Every NVTX range this process opens, whoever does: counted by domain and name, and open to those who act on them.

A listener is called with the domain ("" is the default one) and the name of a range, its number among those of that
name in this process (from 1), and whether it begins (before it opens) or has ended (after it closed); None says that
it did not open after all. That is the place to switch a profiler on and off around, say, the fifth decode step.

Programs may give anything as a name. What is no text is not counted and no listener is called: nvtx makes of it what it will.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

from . import log

Listener = Callable[[str, str, int, Optional[bool]], None]
# A program that puts numbers into its names has no end of them; the first are enough.
_MOST_NAMES = 20_000
# Every module has one of these, and models have many experts: they must not use up the names of the program.
MARKER = "llm-perf:"
_MOST_MARKERS = 200_000


class _Stacks(threading.local):
    """Ranges that are open on a thread, innermost last; every domain has a stack of its own."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[str, int] | None]] = {}  # None: one that is not counted


class Locked:
    """Has a lock. A child that is forked while another thread holds it would deadlock: it gets its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_lock)

    def _forget_lock(self) -> None:
        self._lock = threading.RLock()


class SeenRanges(Locked):
    """Ranges of the process. `begin` comes right before a range is pushed, `end` right after one was popped."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._names = {True: 0, False: 0}  # that are counted: marker ranges, and those of the program
        self.listeners: list[Listener] = []
        self._stacks = _Stacks()
        super().__init__()

    def begin(self, domain: object, name: object) -> None:
        if not isinstance(domain, str):
            return
        counted = None
        if isinstance(name, str):
            counted = (name, self._count(domain, name))
            if self.listeners:
                try:
                    self._notify(domain, *counted, True)
                except BaseException:  # the program is ended here: the range does not open
                    self._uncount(domain, *counted)
                    raise
        self._stacks.of.setdefault(domain, []).append(counted)

    def end(self, domain: object) -> None:
        counted = self._pop(domain)
        if counted is not None and self.listeners:
            self._notify(str(domain), *counted, False)

    def undo(self, domain: object) -> None:
        """What began last did not open: whoever pushed it got an error. The next of its name has its number."""
        counted = self._pop(domain)
        if counted is None:
            return
        self._uncount(str(domain), *counted)
        if self.listeners:
            self._notify(str(domain), *counted, None)

    def open(self, domain: object, name: object, key: object) -> bool:
        """A start/end range, known by `key` from now on. Those are timed, but neither counted nor acted on."""
        return False

    def close(self, key: object) -> None:
        """It has ended."""

    def _uncount(self, domain: str, name: str, number: int) -> None:
        with self._lock:
            if self.counts.get((domain, name)) == number:
                self.counts[domain, name] -= 1

    def _pop(self, domain: object) -> tuple[str, int] | None:
        stack = self._stacks.of.get(domain) if isinstance(domain, str) else None
        return stack.pop() if stack else None  # an empty one: a range that was opened in a way that is not watched

    def _count(self, domain: str, name: str) -> int:
        with self._lock:
            number = self.counts.get((domain, name), 0) + 1
            if number == 1 and (domain, name) not in self.counts:
                ours = name.startswith(MARKER)
                if self._names[ours] >= (_MOST_MARKERS if ours else _MOST_NAMES):
                    return number
                self._names[ours] += 1
            self.counts[domain, name] = number
        return number

    def _notify(self, domain: str, name: str, number: int, begins: bool | None) -> None:
        for listener in list(self.listeners):
            try:
                listener(domain, name, number, begins)
            except Exception as error:
                self.listeners.remove(listener)
                log.failed("acting on a range", error, of="ranges")


# One for the process: torch and the nvtx package may both be there.
ranges_seen = SeenRanges()

"""What Ctrl-C and SIGTERM do, from the first moment of a command to the last.

Imports nothing but the standard library's smallest parts: an entry point calls it before anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130


def end_at_once() -> None:
    """While there is nothing to lose yet (imports): say so and go. An exception could end up in any module's hands."""

    def leave(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"Interrupted.\n")
        os._exit(_INTERRUPTED)

    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def raise_in_order() -> None:
    """From here on there may be something to clean up: both arrive as KeyboardInterrupt."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def too_late() -> None:
    """Everything is written and the exit code is known: an interrupt would only print a traceback."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Both wait until a short piece of work is done."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield
        return
    arrived: list[int] = []
    # Handlers rather than the signal mask: that is one thread's, and the libraries we use have several.
    old = {n: signal.signal(n, lambda number, _: arrived.append(number)) for n in _STOPS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if arrived:
            signal.raise_signal(arrived[0])

"""What Ctrl-C, SIGTERM and the loss of the terminal do, from the first moment of a command to the last.

Imports next to nothing: an entry point calls it before anything else, and what comes before it, the start of
Python itself, shows a traceback.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` takes its time too; type checkers know the name
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # the same functions; `signal` spends its first milliseconds on enumerations

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130
# What to tidy up when the program ends at once; with it, whether the signals are ours to handle.
at_exit: list[Callable[[], None]] = []
_taken: list[int] = []


def end_at_once() -> None:
    """While there is nothing to lose yet (imports): say so and go. An exception could end up in any module's hands."""

    def leave(*_: object) -> None:
        try:
            os.write(2, b"Interrupted.\n")
            for tidy in at_exit:
                tidy()
        finally:  # whatever was interrupted halfway
            os._exit(_INTERRUPTED)

    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # what is ignored stays ignored
            signal.signal(number, leave)
            _taken.append(number)


def raise_in_order() -> None:
    """From here on there may be something to clean up: they arrive as KeyboardInterrupt. For programs of ours only."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in _taken:
        signal.signal(number, interrupt)


def too_late() -> None:
    """Everything is written and the exit code is known: an interrupt would only print a traceback."""
    for number in _taken:
        signal.signal(number, signal.SIG_IGN)


class held:
    """`with held():` lets them wait until a short piece of work is done."""

    def __enter__(self) -> None:
        import threading

        self._arrived: list[int] = []
        # Only the main thread hears of signals. Handlers rather than the signal mask: that is one thread's,
        # and the libraries we use have several.
        here = threading.current_thread() is threading.main_thread()
        self._old = {n: signal.signal(n, self._note) for n in _STOPS if here}

    def _note(self, number: int, _: object) -> None:
        self._arrived.append(number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._arrived:
            signal.raise_signal(self._arrived[0])

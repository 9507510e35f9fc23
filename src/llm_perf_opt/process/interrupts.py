"""What Ctrl-C, SIGTERM and the loss of the terminal do, from the first moment of a command to the last.

Imports next to nothing: an entry point calls it before anything else, and what comes before it, the start of
Python itself, shows a traceback.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # `typing` takes its time too; type checkers know the name
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping
    from typing import Any
else:
    import _signal as signal  # the same functions; `signal` spends its first milliseconds on enumerations

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130
_ONE_WISH_S = 0.2  # between two signals: a key that is held down repeats sooner, so do shells that pass a signal on
_LATER_S, _LONGEST_WAIT_S = 0.02, 2.0
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

    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # what is ignored stays ignored
            signal.signal(number, leave)
            _taken.append(number)
    # A mask is inherited from whoever starts us, and nobody means it: we would neither stop nor hear of a child's
    # end. The same for an ignored SIGCHLD, with which the system forgets how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class Interrupts:
    """A handler that raises KeyboardInterrupt, once for signals that follow each other at once.

    Between `answer` and `again` it raises nothing: what is done about one interrupt is not for the next to stop.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once  # whoever raises it answers it, too
        self._answered = False
        self._raised = False
        self._last = float("-inf")
        self._waited_s = 0.0

    def __call__(self, number: int, frame: Any) -> None:
        # There it would be lost, or leave Python's own lock taken: once more in a moment. A program that runs as an
        # import waits no longer than that.
        if self._waited_s < _LONGEST_WAIT_S and _is_importing(frame):
            import threading

            self._waited_s += _LATER_S
            threading.Timer(_LATER_S, os.kill, (os.getpid(), number)).start()
            return
        self._waited_s = 0.0
        before, self._last = self._last, time.monotonic()
        if self._answered or self._last - before < _ONE_WISH_S:
            return
        self._answered = self._once
        self._raised = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise once more what has reached nobody: Python drops what is raised while it takes an object apart."""
        if self._raised:
            raise KeyboardInterrupt

    def answer(self) -> None:
        self._answered = True

    def again(self) -> None:
        """What comes now may take long: one more signal stops it."""
        self._answered = self._raised = False


def _is_importing(frame: Any) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def raise_in_order() -> None:
    """From here on there may be something to clean up: they arrive as KeyboardInterrupt. For programs of ours only."""
    handle(dict.fromkeys(_taken, Interrupts()))


def too_late() -> None:
    """Everything is written and the exit code is known: an interrupt would only print a traceback."""
    handle(dict.fromkeys(_taken, signal.SIG_IGN))


def handle(handlers: Mapping[Any, Any]) -> None:
    """Set all handlers, even if one of them raises meanwhile: half of them would be heard by nobody."""
    interrupted: KeyboardInterrupt | None = None
    left = list(handlers)
    while left:
        try:
            handler = handlers[left[-1]] or signal.SIG_DFL  # None: one that is not Python's
            # `signal.getsignal` gives enumerations, which `_signal` does not know.
            signal.signal(left[-1], int(handler) if isinstance(handler, int) else handler)
            left.pop()
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
    if interrupted is not None:
        raise interrupted


class held:
    """`with held():` lets them wait until a short piece of work is done."""

    def __enter__(self) -> None:
        import threading

        self._arrived: list[int] = []
        # Only the main thread hears of signals. Handlers rather than the signal mask: that is one thread's,
        # and the libraries we use have several.
        here = threading.current_thread() is threading.main_thread()
        self._old = {number: signal.getsignal(number) for number in STOPS if here}
        try:
            handle(dict.fromkeys(self._old, self._note))
        except KeyboardInterrupt:
            handle(self._old)
            raise

    def _note(self, number: int, _: object) -> None:
        self._arrived.append(number)

    def __exit__(self, *_: object) -> None:
        handle(self._old)
        if self._arrived:
            signal.raise_signal(self._arrived[0])

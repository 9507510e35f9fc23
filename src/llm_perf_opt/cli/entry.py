"""The console script: Ctrl-C is answered in order from the first moment, so almost nothing is imported before."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `interrupts`
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal
# The next import takes a moment on a busy machine: until it is done, Ctrl-C ends the process without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from llm_perf_opt.process import interrupts  # noqa: E402


def entry() -> None:
    """Run `llm-perf` as a program."""
    interrupts.end_at_once()
    import atexit
    import contextlib
    import gc
    import io
    import os

    from llm_perf_opt.process import streams
    from llm_perf_opt.process.allocation import use_memory_again

    streams.keep_open()
    ended: list[int] = []

    def leave() -> None:
        """All is done that is done at exit, but to take every object apart, for nobody."""
        if ended:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(ended[0])

    atexit.register(leave)  # before all others, and so called last
    # Reports are millions of objects that stay until the end: looking through them again and again for cycles took
    # a tenth of the time.
    gc.set_threshold(300_000, 50, 50)

    use_memory_again()

    from llm_perf_opt.cli.main import main

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets an escape instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    interrupts.raise_in_order()
    code = 130
    with contextlib.suppress(KeyboardInterrupt):  # while it is telling of something else, or has just returned
        code = main()
        interrupts.too_late()
    with contextlib.suppress(KeyboardInterrupt):
        interrupts.too_late()
    try:
        sys.stdout.flush()
    except OSError:  # a full disk: what there was to say is lost, what was done is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    ended.append(code)
    sys.exit(code)

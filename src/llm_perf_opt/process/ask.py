"""Short questions to other programs: what they answer within a time, taken back where nobody waits for it any more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from attrs import define

TIMEOUT_S = 30.0
_LOOK_S = 0.1  # between two looks at whether the answer is still wanted
_here = threading.local()  # in a thread of `Questions`: the event that says that it is not


@define
class Answer:
    """What a short command answered."""

    argv: list[str]
    exit_code: int | None  # None: it could not be started, or did not end in time
    output: str = ""
    errors: str = ""


def ask(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    together: bool = False,
    stop: threading.Event | None = None,
) -> Answer:
    """Run a short command. `together`: errors are part of the output. `stop`: set when nobody waits for the answer."""
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    stop = stop or getattr(_here, "stop", None)
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        return Answer(list(argv), None, errors=f"it cannot be run: {error.strerror or error}")
    until = time.monotonic() + timeout_s
    with child:
        try:
            while time.monotonic() < until and not (stop is not None and stop.is_set()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, errors = child.communicate(timeout=min(_LOOK_S, timeout_s))
                    return Answer(list(argv), child.returncode, output, errors or "")
        finally:
            # The group, not the child alone: CUDA's wrapper scripts start the tool as a child of their own.
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return Answer(list(argv), None, errors=f"it did not answer within {timeout_s:g} s")


class Questions:
    """Threads that ask while something else goes on. As a context: what is still open at its end is not waited for."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(16, "asked", initializer=_here.__setattr__, initargs=("stop", self._stop))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

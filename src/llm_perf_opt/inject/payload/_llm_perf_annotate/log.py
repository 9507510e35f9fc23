"""Messages of the annotation: each printed once on standard error, and written to the log where one is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

_reported: set[str] = set()


def trouble(message: str, of: str = "annotation") -> None:
    """Report that something cannot be annotated. Never fails, never repeats a message.

    `of="ranges"`: it is about the ranges the program opens itself, which are watched also where no annotation was
    asked for.
    """
    if message in _reported:
        return
    _reported.add(message)
    note("trouble", message=message, of=of)
    with contextlib.suppress(Exception):  # standard error may be closed or missing
        sys.stderr.write(f"llm-perf{' annotate' if of == 'annotation' else ''}: {message}\n")
        sys.stderr.flush()


def failed(doing: str, error: BaseException, of: str = "annotation") -> None:
    """Report that a part of ours broke; the program goes on without it."""
    trouble(f"{doing} failed and is left out: {type(error).__name__}: {error}.", of)


def note(event: str, **facts: Any) -> None:
    """Write a line into the log that `llm-perf profile` reads afterwards."""
    path = os.environ.get("LLM_PERF_ANNOTATE_LOG")
    if not path:
        return
    with contextlib.suppress(Exception):  # the log is for us, the program must not suffer from it
        append(path, json.dumps({"pid": os.getpid(), "event": event, **facts}))


def append(path: str, line: str) -> None:
    """Add one line to a file that several processes write to."""
    # Never waits: where the file should be, there may be a pipe that nobody reads.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        os.write(file, line.encode("utf-8", "replace") + b"\n")
    finally:
        os.close(file)

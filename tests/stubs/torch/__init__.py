"""A few names of torch for programs that only open ranges: the real one takes seconds to import.

`first_call` is the program's first CUDA call, where a program that `ncu --mode launch` has started waits for the
attaching ncu, deaf to polite signals as the real one; with the stand-ins of `fake_tools`. Switching the profiler is
noted in `FAKE_PROFILER`.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

_kept: list[socket.socket] = []  # its end tells ncu that the program has ended


def first_call() -> bool:
    """Did it have to wait?"""
    port = os.environ.pop("FAKE_PORT", None)
    if port is None:
        return False
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", int(port)))
        server.listen()
        if "FAKE_MARKS" in os.environ:
            (Path(os.environ["FAKE_MARKS"]) / "parked").touch()
        _kept.append(server.accept()[0])
    _kept[0].recv(1)
    signal.signal(signal.SIGINT, heard)
    return True


class _Runtime:
    def cudaProfilerStart(self) -> int:
        return _noted("cudaProfilerStart")

    def cudaProfilerStop(self) -> int:
        return _noted("cudaProfilerStop")


def _noted(word: str) -> int:
    with Path(os.environ["FAKE_PROFILER"]).open("a") as file:
        file.write(f"{word}\n")
    return 0


_C = SimpleNamespace()
cuda = SimpleNamespace(_is_in_bad_fork=lambda: False, cudart=_Runtime)

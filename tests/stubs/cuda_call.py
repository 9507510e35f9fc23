"""A program's first CUDA call, where one that `ncu --mode launch` has started waits for the attaching ncu.

With the stand-ins of `fake_tools`. While it waits it is deaf to polite signals, as the real one.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

_kept: list[socket.socket] = []  # its end tells ncu that the program has ended


def first_call() -> bool:
    """Did it have to wait?"""
    port = os.environ.pop("FAKE_PORT", None)
    if port is None:
        return False
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket() as server:
        server.bind(("127.0.0.1", int(port)))
        server.listen()
        if "FAKE_MARKS" in os.environ:
            (Path(os.environ["FAKE_MARKS"]) / "parked").touch()
        _kept.append(server.accept()[0])
    _kept[0].recv(1)
    signal.signal(signal.SIGINT, heard)
    return True

"""Programs that need torch, run in forks of one process that has imported it (`programs/on_demand.py`).

Importing torch, transformers and the compiler takes longer than most of these programs: one process does it for all
workers of a run of the tests. It listens on a socket in their common folder, which nobody else may enter, and ends when
the last of them has closed its connection.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from llm_perf_opt.inject.environment import INJECTED

PROGRAMS = Path(__file__).parent / "programs"
# What programs with a model of transformers import, or torch.compile for them.
WITH_TRANSFORMERS = (
    *("torch._dynamo.backends.debugging", "torch._dynamo.convert_frame", "torch.export", "transformers.generation"),
    *("transformers.models.llama.modeling_llama", "transformers.models.t5.modeling_t5", "transformers.cache_utils"),
)


class Forks:
    """A connection to that process, which the first who runs a program starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: subprocess.Popen[bytes] | None = None
        self._connection: TextIOWrapper | None = None

    def run(
        self, program: str | Path, environment: Mapping[str, str], folder: Path, modules: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the code, or the file, with nothing but this environment. What it prints is also left in `folder`."""
        if self._connection is None:
            self._connection = self._connected()
        out, err = folder / "out", folder / "err"
        asked = {"code": program} if isinstance(program, str) else {"path": str(program)}
        asked |= {"out": str(out), "err": str(err), "folder": str(Path.cwd())}
        asked = {"path": None, **asked, "environment": dict(environment), "modules": modules}
        self._connection.write(json.dumps(asked) + "\n")
        self._connection.flush()
        answer = self._connection.readline()
        assert answer, "The process that imports torch for these programs has ended."
        return subprocess.CompletedProcess([str(program)], int(answer), out.read_text(), err.read_text())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._started is not None:
            self._started.wait()

    def _connected(self) -> TextIOWrapper:
        connection = socket.socket(socket.AF_UNIX)
        with connection, _alone(self._folder) as listening:
            try:
                connection.connect(listening)
            except (FileNotFoundError, ConnectionRefusedError):
                self._start(listening)
                connection.connect(listening)
            return connection.makefile("rw", encoding="utf-8")

    def _start(self, listening: str) -> None:
        """It is listened on its behalf: who connects meanwhile waits until torch is imported."""
        with suppress(FileNotFoundError):
            Path(listening).unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(listening)
            listener.listen()
            program = (sys.executable, str(PROGRAMS / "on_demand.py"))
            argv = [*program, str(INJECTED), str(self._folder), str(listener.fileno())]
            self._started = subprocess.Popen(argv, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)


@contextmanager
def _alone(folder: Path) -> Iterator[str]:
    """Where it listens; no other worker looks for it, or starts it, at the same time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield f"/proc/self/fd/{descriptor}/forks"  # the name of a socket is short, that of a folder need not be
    finally:
        os.close(descriptor)

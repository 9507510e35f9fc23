"""A cache of compiled Python for a program that is started several times.

Where PYTHONDONTWRITEBYTECODE is set, as in many containers, and packages were installed without compiled files, as uv
does it, every start compiles everything again: importing torch and transformers took 12 s longer on such a machine,
for each of the runs of one command. The first run lists the modules it used; they are compiled on all cores before
the next one, so that the first is as fast as ever and the others start at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import define, field

_LISTED_IN = "LLM_PERF_MODULES"  # read by the payload: where it lists the interpreter and the modules
_PATIENCE_S = 20.0  # what is compiled by then is used
_MOST_BYTES = 8 << 20  # of the list


@define
class BytecodeCache:
    """Of one run. Its folder is nobody else's to write to: what lies in it is run. None: Python has a cache already."""

    folder: Path | None
    filled: bool = False
    compilers: list[subprocess.Popen[bytes]] = field(factory=list)

    def variables(self, *, beside: bool = False) -> dict[str, str]:
        """For the next start of a program that has our payload.

        `beside`: modules may be compiled while it starts. Else they are before, so that its times are its own.
        """
        if self.folder is None:
            return {}
        listed = self.folder / "modules"
        if not self.filled and listed.exists():
            self.filled = True
            with contextlib.suppress(OSError):
                self.compilers += _compile(listed, self.folder)
        if not beside:
            self.wait()
        return self.while_running() if self.filled else {_LISTED_IN: str(listed)}

    def while_running(self) -> dict[str, str]:
        """For a program that lists nothing: it fills the cache itself, which takes it a few seconds."""
        if self.folder is None:
            return {}
        self.filled = True
        return {"PYTHONPYCACHEPREFIX": str(self.folder), "PYTHONDONTWRITEBYTECODE": "", _LISTED_IN: ""}

    def wait(self) -> None:
        """Until everything is compiled; who takes too long is ended."""
        until = time.monotonic() + _PATIENCE_S
        for process in self.compilers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self.end()

    def end(self) -> None:
        for process in self.compilers:
            process.kill()
            process.wait()
        self.compilers.clear()


@contextlib.contextmanager
def bytecode_cache(environment: Mapping[str, str] | None = None) -> Iterator[BytecodeCache]:
    """It is gone afterwards."""
    given = os.environ if environment is None else environment
    if not given.get("PYTHONDONTWRITEBYTECODE") or given.get("PYTHONPYCACHEPREFIX"):
        yield BytecodeCache(None)
        return
    with tempfile.TemporaryDirectory(prefix="llm-perf-bytecode-", ignore_cleanup_errors=True) as folder:
        cache = BytecodeCache(Path(folder))
        try:
            yield cache
        finally:
            cache.end()


def _compile(listed: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """With the interpreter that will read it. Whatever fails here costs time at the next start, and nothing else.

    A process for every core has its part of the list: `compileall -j` shares out folders, not files.
    """
    with listed.open("rb") as file:
        lines = file.read(_MOST_BYTES).split(b"\n")
    interpreter = os.fsdecode(lines[0])
    modules = sorted({line for line in lines if line.endswith(b".py")})
    cores = len(os.sched_getaffinity(0))
    for number, part in enumerate(part for first in range(cores) if (part := modules[first::cores])):
        share = folder / f"modules-{number}"
        share.write_bytes(b"\n".join(part))
        yield subprocess.Popen(
            [interpreter, "-m", "compileall", "-q", "-i", str(share)],
            env={**os.environ, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,  # not the user's: a module there may have the name of one that is needed
        )

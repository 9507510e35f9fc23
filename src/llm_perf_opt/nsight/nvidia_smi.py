"""What nvidia-smi says of the GPUs of this machine."""

from __future__ import annotations

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

_FACTS = "index,name,uuid,driver_version,compute_cap,memory.total,clocks.sm,clocks.mem,clocks.max.sm,pstate"
_TIMEOUT_S = 30.0
_LOOK_S = 0.1  # between two looks at whether the answer is still wanted


def gpu_facts(stop: threading.Event | None = None) -> list[dict[str, str]]:
    """Name, driver and clocks of every GPU; empty where there is none, or where `stop` is set before the answer."""
    argv = ["nvidia-smi", f"--query-gpu={_FACTS}", "--format=csv,noheader"]
    until = time.monotonic() + _TIMEOUT_S
    try:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            while True:
                try:
                    output = child.communicate(timeout=_LOOK_S)[0]
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > until or (stop is not None and stop.is_set()):
                        child.kill()
                        return []
                except BaseException:  # an interrupt: `with` would wait for the answer
                    child.kill()
                    raise
    except (OSError, ValueError):  # ValueError: what it says is no text
        return []
    if child.returncode:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    return [dict(zip(_FACTS.split(","), row, strict=False)) for row in rows]


class GpusAsked:
    """The question, asked while something else goes on. As a context: at its end it is taken back."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpus")
        self._answer = self._pool.submit(gpu_facts, self._stop)

    def facts(self) -> list[dict[str, str]]:
        return self._answer.result()

    def __enter__(self) -> GpusAsked:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=False)

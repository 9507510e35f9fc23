"""A cache of compiled Python for a program that is started several times.

Where PYTHONDONTWRITEBYTECODE is set, as in many containers, and packages were installed without compiled files, as uv
does it, every start compiles everything again: importing torch and transformers took 12 s longer on such a machine,
for each of the runs of one command. The first start fills the cache, the others read it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def bytecode_cache(environment: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Variables for the program, none where Python has a cache already; the cache is gone afterwards.

    In a folder that nobody else can write to: what lies in it is run.
    """
    given = os.environ if environment is None else environment
    if not given.get("PYTHONDONTWRITEBYTECODE") or given.get("PYTHONPYCACHEPREFIX"):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="llm-perf-bytecode-", ignore_cleanup_errors=True) as folder:
        yield {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}

"""Programs that need torch, run in forks of one process that has imported it (`programs/on_demand.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from llm_perf_opt.inject.environment import INJECTED

PROGRAMS = Path(__file__).parent / "programs"
# What programs with a model of transformers import, or torch.compile for them.
WITH_TRANSFORMERS = (
    *("torch._dynamo.backends.debugging", "torch._dynamo.convert_frame", "torch.export", "transformers.generation"),
    *("transformers.models.llama.modeling_llama", "transformers.models.t5.modeling_t5", "transformers.cache_utils"),
)


class Forks:
    """That process, started when the first program is run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, program: str | Path, environment: Mapping[str, str], folder: Path, modules: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the code, or the file, with nothing but this environment. What it prints is also left in `folder`."""
        argv = [sys.executable, str(PROGRAMS / "on_demand.py"), str(INJECTED)]
        if self._process is None:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        out, err = folder / "out", folder / "err"
        asked = {"code": program} if isinstance(program, str) else {"path": str(program)}
        asked |= {"out": str(out), "err": str(err)}
        asked = {"path": None, **asked, "environment": dict(environment), "modules": modules}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        ended = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(argv, ended, out.read_text(), err.read_text())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

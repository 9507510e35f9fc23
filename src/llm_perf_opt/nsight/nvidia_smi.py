"""What nvidia-smi says of the GPUs of this machine."""

from __future__ import annotations

import threading

from llm_perf_opt.process.ask import Questions, ask

_FACTS = "index,name,uuid,driver_version,compute_cap,memory.total,clocks.sm,clocks.mem,clocks.max.sm,pstate"


def gpu_facts(stop: threading.Event | None = None) -> list[dict[str, str]]:
    """Name, driver and clocks of every GPU; empty where there is none, or where `stop` is set before the answer."""
    answer = ask(["nvidia-smi", f"--query-gpu={_FACTS}", "--format=csv,noheader"], stop=stop)
    if answer.exit_code != 0:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.output.splitlines() if line.strip()]
    return [dict(zip(_FACTS.split(","), row, strict=False)) for row in rows]


class GpusAsked(Questions):
    """The question, asked while something else goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = self._pool.submit(gpu_facts).result

"""A server with a loop of its own: no engine that anybody knows.

    python own_server.py PORT RECORDS marked|bare

A new request is read alone; then all that run make a token together. `marked`: every step is a range of its own.
"""

import contextlib
import json
import queue
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from completions_api import serve

MARKS = sys.argv[-1] == "marked"


def loop(asked: Any, made: Any, records: str) -> None:
    import nvtx
    import torch
    from small_model import small_model

    model, width, device = small_model()
    running: dict[str, list[int]] = {}  # tokens made, tokens wanted
    steps: list[list[tuple[int, int, int]]] = []
    made.put(None)
    waiting: list[tuple[str, int, int]] = []
    while True:
        try:
            while (request := asked.get(block=not running and not waiting)) is not None:
                waiting.append(request)
        except queue.Empty:
            pass
        else:
            break
        if waiting:
            name, tokens, wanted = waiting.pop(0)
            phase, batch = "prefill", [name]
            running[name] = [0, wanted]
        else:
            phase, batch, tokens = "decode_step", list(running), len(running)
        numbers = f", batch = {len(batch)}, tokens = {tokens}, new = {len(batch)}"
        with nvtx.annotate(phase + numbers) if MARKS else contextlib.nullcontext():
            model(torch.zeros(tokens, width, device=device))
        steps.append([(tokens if phase == "prefill" else 1, 1, running[name][0]) for name in batch])
        for name in batch:
            running[name][0] += 1
        made.put([(name, running[name][0] == running[name][1]) for name in batch])
        running = {name: counts for name, counts in running.items() if counts[0] < counts[1]}
    Path(records).write_text(json.dumps(steps))


if __name__ == "__main__":
    serve(loop, int(sys.argv[1]), sys.argv[2])

"""A server with the classes of vLLM that are hooked: scheduler and worker in the engine's process.

    python server.py PORT RECORDS

It serves until it is interrupted; then it writes to RECORDS what its scheduler did in each step.
"""

import json
import queue
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from completions_api import serve


def engine(asked: Any, made: Any, records: str) -> None:
    from vllm.v1.core.sched.scheduler import Request, Scheduler
    from vllm.v1.worker.gpu_worker import Worker

    scheduler, worker = Scheduler(), Worker()
    worker.determine_available_memory()
    worker.compile_or_warm_up_model()
    made.put(None)
    while True:
        try:
            while (request := asked.get(block=not scheduler.requests)) is not None:
                scheduler.requests[request[0]] = Request(*request)
        except queue.Empty:
            pass
        else:
            break
        scheduled = scheduler.schedule()
        worker.execute_model(scheduled)
        made.put(scheduler.update_from_output(scheduled, worker.sample_tokens(None)))
    Path(records).write_text(json.dumps(scheduler.records))


if __name__ == "__main__":
    serve(engine, int(sys.argv[1]), sys.argv[2])

"""A server with the classes of SGLang that are hooked: its scheduler's process runs the model, too.

    python sglang_server.py PORT RECORDS

It serves until it is interrupted; then it writes to RECORDS what its scheduler did in each step.
"""

import json
import queue
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from completions_api import serve


def run_scheduler_process(asked: Any, made: Any, records: str) -> None:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

    scheduler = Scheduler()
    scheduler.runner.init_device_graphs()
    scheduler.runner.kernel_warmup()
    made.put(None)
    while True:
        idle = scheduler.running_batch.is_empty() and not scheduler.waiting_queue
        try:
            while (request := asked.get(block=idle)) is not None:
                scheduler.waiting_queue.append(Req(*request))
                idle = False
        except queue.Empty:
            pass
        else:
            break
        batch = scheduler.get_next_batch_to_run()
        if batch is not None:
            made.put(scheduler.process_batch_result(batch, scheduler.run_batch(batch)))
    Path(records).write_text(json.dumps(scheduler.records))


if __name__ == "__main__":
    serve(run_scheduler_process, int(sys.argv[1]), sys.argv[2])

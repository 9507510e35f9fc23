"""A server of the layout of vLLM's: a process that speaks HTTP, and one with the scheduler and the worker.

    python server.py PORT RECORDS

It serves until it is interrupted; then it writes to RECORDS what its scheduler did in each step.
"""

import json
import multiprocessing
import queue
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

answers: dict[str, "queue.Queue[bool]"] = {}


def engine(asked: Any, made: Any, records: str) -> None:
    """The engine core and its worker."""
    from vllm.v1.core.sched.scheduler import Request, Scheduler
    from vllm.v1.worker.gpu_worker import Worker

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server tells when to end
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


class Api(BaseHTTPRequestHandler):
    asked: Any

    def log_message(self, *words: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._answer(200, b'{"data": [{"id": "stand-in"}]}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self._answer(404, b"{}")
            return
        name, prompt = f"{threading.get_ident()}-{len(answers)}-{id(asked)}", len(asked["prompt"].split())
        tokens = answers[name] = queue.Queue()
        self.asked.put((name, prompt, asked["max_tokens"]))
        self.send_response(200)
        self.end_headers()
        last, count = False, 0
        while not last:
            last, count = tokens.get(), count + 1
            self.wfile.write(b'data: {"choices": [{"text": "a"}]}\n\n')
            self.wfile.flush()
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": count}})
        self.wfile.write(f"data: {usage}\n\ndata: [DONE]\n\n".encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)


def hand_out(made: Any) -> None:
    while True:
        for name, last in made.get() or ():
            answers[name].put(last)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    asked, made = spawn.Queue(), spawn.Queue()
    core = spawn.Process(target=engine, args=(asked, made, sys.argv[2]))
    core.start()
    made.get()
    threading.Thread(target=hand_out, args=(made,), daemon=True).start()
    Api.asked = asked
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api)
    server.daemon_threads = True
    print("serving", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        asked.put(None)
        core.join()
        print("ended in order", flush=True)

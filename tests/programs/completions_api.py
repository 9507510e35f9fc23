"""A server of the layout of vLLM's: a process that speaks HTTP as OpenAI does, and one with the engine.

`serve` runs until it is interrupted. The engine gets requests (name, tokens of the prompt, tokens of the answer) and
None when it is to end; it puts None once it is ready, then lists of tokens: the request's name, and whether it is its last.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import queue
import signal
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

answers: dict[str, queue.Queue[bool]] = {}
_numbers = itertools.count()


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
        name, prompt = f"request-{next(_numbers)}", len(asked["prompt"].split())
        tokens = answers[name] = queue.Queue()
        self.asked.put((name, prompt, asked["max_tokens"]))
        self._answer(200, b"")
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


def _hand_out(made: Any) -> None:
    while True:
        for name, last in made.get() or ():
            answers[name].put(last)


def _run(engine: Callable[[Any, Any, str], None], asked: Any, made: Any, records: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server tells when to end
    engine(asked, made, records)


def serve(engine: Callable[[Any, Any, str], None], port: int, records: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    asked, made = spawn.Queue(), spawn.Queue()
    core = spawn.Process(target=_run, args=(engine, asked, made, records))
    core.start()
    while core.exitcode is None:
        try:
            made.get(timeout=0.5)
            break
        except queue.Empty:
            continue
    else:
        sys.exit(f"the engine has ended with {core.exitcode}")
    threading.Thread(target=_hand_out, args=(made,), daemon=True).start()
    Api.asked = asked
    server = ThreadingHTTPServer(("127.0.0.1", port), Api)
    server.daemon_threads = True
    print("serving", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        asked.put(None)
        core.join()
        print("ended in order", flush=True)

"""transformers' continuous batching with random weights, in a process of its own, that records what it does.

    python batched_server.py batch RECORDS [--tiny]           `generate_batch()` over requests of several lengths
    python batched_server.py http PORT RECORDS [--tiny]       the same engine behind HTTP, until it is interrupted

RECORDS gets, for each step, its requests (tokens read, whether a token comes out, tokens that came out before), and the
tokens that were handed out, with the moments of the first and the last.
"""

from __future__ import annotations

import json
import multiprocessing
import queue
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TINY = "--tiny" in sys.argv
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 16}
TINY_SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
VOCABULARY = 64 if TINY else 32000
PROMPTS, NEW = ([1, 5, 40, 3, 70, 17, 33], 12) if TINY else ([17 + 61 * n % 900 for n in range(64)], 128)
answers: dict[str, queue.Queue[bool]] = {}


class Engine:
    """A model, and what the engine itself says of each step."""

    def __init__(self) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.generation import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching import continuous_api

        self.steps: list[list[list[int]]] = []
        self.first_ns = self.last_ns = 0
        engine = self

        class Recorded(continuous_api.ContinuousBatchProcessor):  # type: ignore[misc]
            def prepare_next_batch(self) -> bool:
                engine.first_ns = engine.first_ns or time.monotonic_ns()
                return bool(super().prepare_next_batch())

            def update_batch(self) -> None:
                io = self.inputs_and_outputs
                io = io.io_pairs[io.current_pair].host_io if hasattr(io, "io_pairs") else io
                engine.steps.append(
                    [[r.query_length, int(r.has_new_token), r.state.generated_len()] for r in io.requests_in_batch]
                )
                super().update_batch()
                engine.last_ns = time.monotonic_ns()

        continuous_api.ContinuousBatchProcessor = Recorded
        torch.manual_seed(0)
        on_gpu = torch.cuda.is_available() and not TINY
        sizes = TINY_SHAPE if TINY else SHAPE
        config = LlamaConfig(**sizes, num_key_value_heads=sizes["num_attention_heads"], vocab_size=VOCABULARY)
        with torch.device("cuda" if on_gpu else "cpu"):
            self.model = LlamaForCausalLM(config).eval().to(torch.bfloat16 if on_gpu else torch.float32)
        self.model.set_attn_implementation("sdpa")
        self.options = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
        wanted = {"num_blocks": 16, "max_batch_tokens": 32} if TINY else {"max_batch_tokens": 2048, "num_blocks": 512}
        if hasattr(ContinuousBatchingConfig(), "auto_switch_to_flash"):  # it would be fetched
            wanted["auto_switch_to_flash"] = False
        self.batching = ContinuousBatchingConfig(**wanted)

    def write(self, path: str, made: int) -> None:
        found = {"steps": self.steps, "made": made, "seconds": (self.last_ns - self.first_ns) / 1e9}
        Path(path).write_text(json.dumps(found))


def batch(records: str) -> None:
    engine = Engine()
    prompts = [[1 + (7 * n + i) % (VOCABULARY - 2) for i in range(length)] for n, length in enumerate(PROMPTS)]
    ended = engine.model.generate_batch(
        prompts, generation_config=engine.options, continuous_batching_config=engine.batching, progress_bar=False
    )
    engine.write(records, sum(len(request.generated_tokens) for request in ended.values()))


def serve(asked: Any, made: Any, records: str) -> None:
    """The engine process of a server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server tells when to end
    engine = Engine()
    manager = engine.model.init_continuous_batching(
        generation_config=engine.options, continuous_batching_config=engine.batching
    )
    manager.start()
    made.put(None)
    count, done = 0, threading.Event()

    def hand_on() -> None:
        nonlocal count
        seen: dict[str, int] = {}
        while not done.is_set():
            output = manager.get_result(timeout=0.1)
            if output is None:
                continue
            for _ in range(len(output.generated_tokens) - seen.get(output.request_id, 0)):
                seen[output.request_id] = seen.get(output.request_id, 0) + 1
                count += 1
                made.put(
                    (
                        output.request_id,
                        output.is_finished() and seen[output.request_id] == len(output.generated_tokens),
                    )
                )

    thread = threading.Thread(target=hand_on)
    thread.start()
    while (request := asked.get()) is not None:
        name, length, new = request
        tokens = [1 + (len(name) + 13 * i) % (VOCABULARY - 2) for i in range(length)]
        manager.add_request(tokens, request_id=name, max_new_tokens=new, streaming=True)
    manager.stop(block=True, timeout=20)
    done.set()
    thread.join()
    engine.write(records, count)


class Api(BaseHTTPRequestHandler):
    asked: Any
    count = 0

    def log_message(self, *words: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "random"}]}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200 if "prompt" in asked else 404)
        self.end_headers()
        if "prompt" not in asked:
            return
        Api.count += 1
        name, prompt = f"{Api.count}-{id(self)}", len(asked["prompt"].split())
        tokens = answers[name] = queue.Queue()
        self.asked.put((name, prompt, asked["max_tokens"]))
        last, count = False, 0
        while not last:
            last, count = tokens.get(), count + 1
            self.wfile.write(b'data: {"choices": [{"text": "a"}]}\n\n')
            self.wfile.flush()
        usage = json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": count}})
        self.wfile.write(f"data: {usage}\n\ndata: [DONE]\n\n".encode())


def http(port: int, records: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    asked, made = spawn.Queue(), spawn.Queue()
    core = spawn.Process(target=serve, args=(asked, made, records))
    core.start()
    made.get()
    Api.asked = asked

    def hand_out() -> None:
        while True:
            name, last = made.get()
            answers[name].put(last)

    threading.Thread(target=hand_out, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", port), Api)
    server.daemon_threads = True
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        asked.put(None)
        core.join()


if __name__ == "__main__":
    if sys.argv[1] == "batch":
        worker = multiprocessing.get_context("spawn").Process(target=batch, args=(sys.argv[2],))
        worker.start()
        worker.join()
        sys.exit(worker.exitcode)
    http(int(sys.argv[2]), sys.argv[3])

"""transformers' continuous batching with random weights, which records what it does.

    python batched_server.py batch RECORDS [--tiny]           `generate_batch()` in a spawned process, several lengths
    python batched_server.py http PORT RECORDS [--tiny]       the same engine behind HTTP, until it is interrupted
    python batched_server.py model FOLDER [--tiny]            the model with a tokenizer, for `transformers serve`
    python batched_server.py command RECORDS serve …          the command `transformers serve …` itself

RECORDS gets, for each step, its requests (tokens read, whether a token comes out, tokens that came out before), and the
tokens that were handed out, with the seconds from the first step to the last.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "programs"))
from completions_api import serve

TINY = "--tiny" in sys.argv
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 16}
TINY_SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
VOCABULARY = 64 if TINY else 32000
PROMPTS, NEW = ([1, 5, 40, 3, 70, 17, 33] * 3, 48) if TINY else ([17 + 61 * n % 900 for n in range(64)], 128)


def random_model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and not TINY
    sizes = TINY_SHAPE if TINY else SHAPE
    config = LlamaConfig(**sizes, num_key_value_heads=sizes["num_attention_heads"], vocab_size=VOCABULARY)
    with torch.device("cuda" if on_gpu else "cpu"):
        return LlamaForCausalLM(config).eval().to(torch.bfloat16 if on_gpu else torch.float32)


class Engine:
    """A model, and what the engine itself says of each step."""

    def __init__(self) -> None:
        from recorded_batching import record  # of the tests
        from transformers.generation import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        self.records = record()
        self.model = random_model()
        self.model.set_attn_implementation("sdpa")
        self.options = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
        wanted = {"num_blocks": 16, "max_batch_tokens": 32} if TINY else {"max_batch_tokens": 2048, "num_blocks": 512}
        if hasattr(ContinuousBatchingConfig(), "auto_switch_to_flash"):  # it would be fetched
            wanted["auto_switch_to_flash"] = False
        self.batching = ContinuousBatchingConfig(**wanted)


def batch(records: str) -> None:
    engine = Engine()
    prompts = [[1 + (7 * n + i) % (VOCABULARY - 2) for i in range(length)] for n, length in enumerate(PROMPTS)]
    ended = engine.model.generate_batch(
        prompts, generation_config=engine.options, continuous_batching_config=engine.batching, progress_bar=False
    )
    engine.records.write(records, sum(len(request.generated_tokens) for request in ended.values()))


def core(asked: Any, made: Any, records: str) -> None:
    """The engine process of a server."""
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
            name, length = output.request_id, len(output.generated_tokens)
            places = range(seen.get(name, 0) + 1, length + 1)
            made.put([(name, output.is_finished() and place == length) for place in places])
            count, seen[name] = count + len(places), length

    thread = threading.Thread(target=hand_on)
    thread.start()
    while (request := asked.get()) is not None:
        name, length, new = request
        tokens = [1 + (len(name) + 13 * i) % (VOCABULARY - 2) for i in range(length)]
        manager.add_request(tokens, request_id=name, max_new_tokens=new, streaming=True)
    manager.stop(block=True, timeout=20)
    done.set()
    thread.join()
    engine.records.write(records, count)


def model(folder: str) -> None:
    """Every token is a word, so that every token of an answer is text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from llm_perf_opt.capture.load_client import WORDS  # of the prompts: unknown words would all be one token

    known = [*WORDS, *(f"word{n}" for n in range(VOCABULARY))][:VOCABULARY]
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(known)}, unk_token=known[0]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template).save_pretrained(folder)
    found = random_model()
    found.generation_config.eos_token_id = found.config.eos_token_id = None  # no answer ends early
    found.save_pretrained(folder)


def command(records: str, arguments: list[str]) -> None:
    """As the shell's `transformers` does it."""
    from recorded_batching import record  # of the tests
    from transformers.cli.transformers import main

    found = record()
    sys.argv = ["transformers", *arguments]
    try:
        main()
    finally:
        found.write(records)


if __name__ == "__main__":
    if sys.argv[1] == "batch":
        worker = multiprocessing.get_context("spawn").Process(target=batch, args=(sys.argv[2],))
        worker.start()
        worker.join()
        sys.exit(worker.exitcode)
    elif sys.argv[1] == "http":
        serve(core, int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "model":
        model(sys.argv[2])
    else:
        command(sys.argv[2], sys.argv[3:])

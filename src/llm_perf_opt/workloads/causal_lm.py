"""Any causal language model of transformers: from a local folder, or with random weights at any size."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define

from llm_perf_opt.errors import UserError
from llm_perf_opt.static_analysis.stage import StaticStage
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.device import explained_failures, find_device, import_transformers
from llm_perf_opt.workloads.fixed_decode import FixedDecoder, captured
from llm_perf_opt.workloads.greedy import GreedyDecoder, Prompt, padded, trimmed
from llm_perf_opt.workloads.hf_models import (
    beyond_greedy,
    build,
    build_on_meta,
    end_tokens,
    padding_token,
    preset,
    read_config,
    refuse_length,
    size_of,
)
from llm_perf_opt.workloads.options import InferOptions, ModelOptions
from llm_perf_opt.workloads.session import Output, Session, Watch
from llm_perf_opt.workloads.tokens import ByteTokenizer, LocalTokenizer, Tokenizer, fitted, made_up

PREFILL, DECODE = "prefill", "decode"


@define(frozen=True)
class PreparedText:
    """One batch of prompts."""

    items: tuple[Item, ...]
    prompt: Prompt


class CausalLmSession(Session[PreparedText]):
    """`hf_causal_lm`: stages `prefill`, which ends with the first token, and `decode` with a `decode_step` a token."""

    stages = (PREFILL, DECODE)
    default_config: str | None = None

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        super().__init__(model, infer)
        default = None if self.default_config is None else preset(self.default_config)
        self.hf_config = read_config(model, default)
        self.tokenizer: Tokenizer | None = None
        self._model: Any = None
        self._decoder: GreedyDecoder | None = None
        self._first_width: int | None = None
        self._tokenizer_tried = False

    @property
    def auto_class(self) -> Any:
        return import_transformers().AutoModelForCausalLM

    # -- loading -------------------------------------------------------------------------------------------

    def load(self) -> None:
        self.device = find_device(self.options.device)
        self._model = build(self.options, self.hf_config, self.device, self.auto_class)
        self._load_tokenizer()
        self._decoder = decoder_for(self._model, self.options, self.infer)
        note_decoding(self, self._model)

    def _load_tokenizer(self) -> None:
        if self._tokenizer_tried:
            return
        self._tokenizer_tried = True
        path = self.options.path
        if path is not None:
            try:
                self.tokenizer = LocalTokenizer(path, self.options.trust_remote_code)
                return
            except (OSError, ValueError, ImportError) as error:
                reason = " ".join(str(error).split())[:200]
                self.note(f"There is no usable tokenizer in {path} ({reason}).")
        if self.infer.prompt_tokens is None and self._vocabulary() >= ByteTokenizer.size:
            self.tokenizer = ByteTokenizer()
            if self.default_config is None:
                self.note("The model has no tokenizer: the bytes of each prompt are its tokens.")
        elif self.infer.prompt_tokens is None:
            raise UserError(
                f"The model has no tokenizer, and its vocabulary of {self._vocabulary()} cannot hold every byte.",
                "Set infer.prompt_tokens to have random prompts of that length.",
            )
        else:
            self.note("The model has no tokenizer: prompts are random token ids.")

    def _vocabulary(self) -> int:
        return int(self.hf_config.get_text_config(decoder=True).vocab_size)

    # -- running -------------------------------------------------------------------------------------------

    def prepare(self, items: Sequence[Item]) -> PreparedText:
        self._load_tokenizer()
        sequences = [self._tokens(item) for item in items]
        assert self._decoder is not None, "load() comes first"
        prompt = padded(sequences, self._decoder.padding, self.device)
        new = self.infer.max_new_tokens
        refuse_length(self.hf_config, prompt.width + new, prompt.width, new)
        if self._first_width is None:
            self._first_width = prompt.width
        self._decoder.ready(prompt)
        return PreparedText(tuple(items), prompt)

    def _tokens(self, item: Item) -> list[int]:
        if item.image is not None:
            self.note("The model reads text: of a page it is given the text that lies beside it, or its name.")
        length = self.infer.prompt_tokens
        if self.tokenizer is None:
            assert length is not None
            return made_up(length, self._vocabulary(), f"{self.options.seed}:{item.id}")
        tokens = self.tokenizer.encode(item.text())
        if not tokens:
            raise UserError(f"The input {item.id} is empty.", "Give it a prompt.")
        return tokens if length is None else fitted(tokens, length)

    def run(self, prepared: PreparedText, watch: Watch) -> Output:
        assert self._decoder is not None, "load() comes first"
        with explained_failures(self.name), torch.no_grad():
            self._decoder.begin(prepared.prompt)
            with watch.step(self.whole):
                generated = self._decoder.generate(prepared.prompt, watch)
        return finished(generated, prepared.prompt, self._decoder.ends, self.tokenizer)

    def facts(self) -> Mapping[str, Any]:
        return {} if self._model is None else model_facts(self._model, self.options, self.hf_config)

    # -- counting ------------------------------------------------------------------------------------------

    def static_stages(self) -> list[StaticStage]:
        width = self._first_width or self.infer.prompt_tokens
        if width is None:
            raise UserError(
                "How long the prompts are is not known before they are prepared.", "Set infer.prompt_tokens."
            )
        model = build_on_meta(self.options, self.hf_config, self.auto_class)
        ids = torch.zeros((self.infer.batch_size, width), dtype=torch.long, device="meta")
        return static_decoding(model, lambda: {"input_ids": ids}, width, self.infer)


class TinyLlmSession(CausalLmSession):
    """`tiny_llm`: a decoder so small that a CPU runs it in seconds; reads text byte by byte."""

    default_config = "tiny_llm"

    def load(self) -> None:
        super().load()
        if self.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            # Its operators last microseconds: on a busy machine two threads wait for each other up to 20 times longer.
            torch.set_num_threads(1)
            self.note("On a CPU this model runs in one thread; OMP_NUM_THREADS changes that.")


# --- shared with the vision-language model -------------------------------------------------------------------


def decoder_for(model: Any, options: ModelOptions, infer: InferOptions) -> GreedyDecoder:
    """The way to decode that the options ask for."""
    ignore = infer.ignore_eos if infer.ignore_eos is not None else options.path is None
    ends = [] if ignore else end_tokens(model)
    common: dict[str, Any] = {"ends": ends, "padding": padding_token(model), "new_tokens": infer.max_new_tokens}
    if options.cuda_graphs:
        return FixedDecoder(model, capture=captured, **common)
    if options.compile:
        return FixedDecoder(model, compile_mode=options.compile, **common)
    return GreedyDecoder(model, **common)


def note_decoding(session: Session[Any], model: Any) -> None:
    """What a reader should know of how tokens were chosen."""
    if session.options.path is None:
        session.note("Weights are random: times and bytes are those of the architecture, texts mean nothing.")
        if session.infer.ignore_eos is None:
            session.note("With random weights the end-of-text token is ignored, because it comes up by chance.")
    left_out = beyond_greedy(model)
    if left_out:
        session.note(f"Decoding is greedy; the model's generation settings also ask for {', '.join(left_out)}.")


def model_facts(model: Any, options: ModelOptions, config: Any) -> dict[str, Any]:
    """What the model is, for `metrics.json`."""
    text = config.get_text_config(decoder=True)
    return {
        "class": type(model).__name__,
        "model_type": config.model_type,
        **size_of(model),
        "layers": getattr(text, "num_hidden_layers", None),
        "hidden_size": getattr(text, "hidden_size", None),
        "vocabulary": getattr(text, "vocab_size", None),
        "attention": getattr(text, "_attn_implementation", None),
        "weights": "random" if options.path is None else "from model.path",
        "decode": "CUDA graph"
        if options.cuda_graphs
        else f"torch.compile {options.compile}".strip()
        if options.compile
        else "eager",
    }


def finished(generated: Any, prompt: Prompt, ends: Sequence[int], tokenizer: Tokenizer | None) -> Output:
    """The output of a batch, on the host."""
    tokens = trimmed(generated, ends)
    steps = generated.shape[1] - 1
    facts = {
        PREFILL: {"batch": prompt.batch, "tokens": sum(prompt.lengths), "computed_tokens": prompt.batch * prompt.width},
        DECODE: {"batch": prompt.batch, "steps": steps, "first_context": prompt.width + 1},
    }
    texts = ["" if tokenizer is None else tokenizer.decode(row) for row in tokens]
    return Output(tokens, texts, facts)


def static_decoding(
    model: Any, inputs: Callable[[], dict[str, Any]], width: int, infer: InferOptions
) -> list[StaticStage]:
    """Prefill and decode on the meta device. One decode step at the middle length stands for all steps."""
    decoder = GreedyDecoder(model, ends=[], padding=0, new_tokens=infer.max_new_tokens)
    batch, steps = infer.batch_size, infer.max_new_tokens - 1

    def prefill() -> None:
        with torch.no_grad():
            decoder.call(inputs(), None, None, None).logits[:, -1].argmax(-1)

    stages = [StaticStage(PREFILL, prefill, 1, {"batch": batch, "tokens": width, "context": width})]
    if steps:
        held = width + (steps - 1) // 2
        shape = {"batch": batch, "tokens": 1, "context": held + 1}
        stages.append(StaticStage(DECODE, _static_step(decoder, batch, held), steps, shape))
    return stages


def _static_step(decoder: GreedyDecoder, batch: int, held: int) -> Callable[[], None]:
    with torch.no_grad():
        ids = torch.zeros((batch, held), dtype=torch.long, device="meta")
        token = torch.zeros((batch, 1), dtype=torch.long, device="meta")
        cache = decoder.call({"input_ids": ids}, None, None, None).past_key_values

    def step() -> None:
        # A step replaces the tensors a layer holds: copies of the layers leave the original as it is.
        mine = copy.copy(cache)
        mine.layers = [copy.copy(layer) for layer in cache.layers]
        with torch.no_grad():
            decoder.call({"input_ids": token}, None, None, mine).logits[:, -1].argmax(-1)

    return step

"""Any causal language model of transformers: from a local folder, or with random weights at any size."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

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
from llm_perf_opt.workloads.model_session import Output, P, Session, Watch
from llm_perf_opt.workloads.tokens import ByteTokenizer, LocalTokenizer, Tokenizer, fitted, made_up
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions

PREFILL, DECODE = "prefill", "decode"


class DecodingSession(Session[P]):
    """A model of transformers whose last stages are `prefill`, which ends with the first token, and `decode`."""

    auto_class_name = "AutoModelForCausalLM"

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        super().__init__(model, infer)
        self.tokenizer: Tokenizer | None = None
        self._model: Any = None
        self._decoder: Any = None  # a GreedyDecoder once the model is loaded

    @property
    def auto_class(self) -> Any:
        return getattr(import_transformers(), self.auto_class_name)

    def load(self) -> None:
        self.device = find_device(self.options.device)
        self._model = build(self.options, self.hf_config, self.device, self.auto_class)
        self._load_tokenizer()
        self._decoder = self._new_decoder()
        if self.options.path is None:
            self.note("Weights are random: times and bytes are those of the architecture, texts mean nothing.")
            if self.infer.ignore_eos is None:
                self.note("With random weights the end-of-text token is ignored, because it comes up by chance.")
        if left_out := beyond_greedy(self._model):
            self.note(f"Decoding is greedy; the model's generation settings also ask for {', '.join(left_out)}.")

    @abstractmethod
    def _load_tokenizer(self) -> None: ...

    def _new_decoder(self) -> GreedyDecoder:
        """The way to decode that the options ask for."""
        options, infer = self.options, self.infer
        ignore = infer.ignore_eos if infer.ignore_eos is not None else options.path is None
        ends = [] if ignore else end_tokens(self._model)
        padding = padding_token(self._model)
        common: dict[str, Any] = {"ends": ends, "padding": padding, "new_tokens": infer.max_new_tokens}
        if options.cuda_graphs:
            return FixedDecoder(self._model, capture=captured, **common)
        if options.compile:
            return FixedDecoder(self._model, compile_mode=options.compile, **common)
        return GreedyDecoder(self._model, **common)

    def _fitted(self, tokens: list[int]) -> list[int]:
        """A prompt of as many tokens as are asked for."""
        length = self.infer.prompt_tokens
        if length is None or length == len(tokens):
            return tokens
        what = "longer are cut" if len(tokens) > length else "shorter are repeated until they are that long"
        self.note(f"infer.prompt_tokens={length}: prompts that are {what}.")
        return fitted(tokens, length)

    def _padded(self, sequences: Sequence[Sequence[int]]) -> Prompt:
        """The tokens of a batch on the device, with all ready to run them."""
        prompt = padded(sequences, self._decoder.padding, self.device)
        new = self.infer.max_new_tokens
        refuse_length(self.hf_config, prompt.width + new, prompt.width, new)
        self._decoder.ready(prompt)
        return prompt

    def _finished(self, generated: Any, prompt: Prompt) -> Output:
        """The output of a batch, on the host."""
        tokens = trimmed(generated, self._decoder.ends)
        computed = prompt.batch * prompt.width
        facts = {
            PREFILL: {"batch": prompt.batch, "tokens": sum(prompt.lengths), "computed_tokens": computed},
            DECODE: {"batch": prompt.batch, "steps": generated.shape[1] - 1, "first_context": prompt.width + 1},
        }
        texts = ["" if self.tokenizer is None else self.tokenizer.decode(row) for row in tokens]
        return Output(tokens, texts, facts)

    def facts(self) -> Mapping[str, Any]:
        if self._model is None:
            return {}
        options, text = self.options, self.hf_config.get_text_config(decoder=True)
        compiled = f"torch.compile {options.compile}" if options.compile else "eager"
        return {
            "class": type(self._model).__name__,
            "model_type": self.hf_config.model_type,
            **size_of(self._model),
            "layers": getattr(text, "num_hidden_layers", None),
            "hidden_size": getattr(text, "hidden_size", None),
            "vocabulary": getattr(text, "vocab_size", None),
            "attention": getattr(text, "_attn_implementation", None),
            "weights": "random" if options.path is None else "from model.path",
            "decode": "CUDA graph" if options.cuda_graphs else compiled,
        }

    def _static_decoding(self, model: Any, inputs: Callable[[], dict[str, Any]], width: int) -> list[StaticStage]:
        """Prefill and decode on the meta device. One decode step at the middle length stands for all steps."""
        decoder = GreedyDecoder(model, ends=[], padding=0, new_tokens=self.infer.max_new_tokens)
        batch, steps = self.infer.batch_size, self.infer.max_new_tokens - 1

        def prefill() -> None:
            decoder.call(inputs(), None, None, None).logits[:, -1].argmax(-1)

        stages = [StaticStage(PREFILL, prefill, 1, {"batch": batch, "tokens": width, "context": width})]
        if steps:
            held = width + (steps - 1) // 2
            shape = {"batch": batch, "tokens": 1, "context": held + 1}
            stages.append(StaticStage(DECODE, _static_step(decoder, batch, held), steps, shape))
        return stages


class CausalLmSession(DecodingSession[Prompt]):
    """`hf_causal_lm`: stages `prefill` and `decode` with a `decode_step` a token."""

    stages = (PREFILL, DECODE)
    default_config: str | None = None

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        super().__init__(model, infer)
        default = None if self.default_config is None else preset(self.default_config)
        self.hf_config = read_config(model, default)
        self._first_width: int | None = None
        self._tokenizer_tried = False

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
        if self._vocabulary() >= ByteTokenizer.size:
            self.tokenizer = ByteTokenizer()
        elif self.infer.prompt_tokens is None:
            raise UserError(
                f"The model has no tokenizer, and its vocabulary of {self._vocabulary()} cannot hold every byte.",
                "Set infer.prompt_tokens to have random prompts of that length.",
            )

    def _vocabulary(self) -> int:
        return int(self.hf_config.get_text_config(decoder=True).vocab_size)

    def prepare(self, items: Sequence[Item]) -> Prompt:
        self._load_tokenizer()
        sequences = [self._tokens(item) for item in items]
        prompt = self._padded(sequences)
        if self._first_width is None:
            self._first_width = prompt.width
        return prompt

    def _tokens(self, item: Item) -> list[int]:
        if item.image is not None:
            self.note("The model reads text: of a page it is given the text that lies beside it, or its name.")
        length, by_bytes = self.infer.prompt_tokens, isinstance(self.tokenizer, ByteTokenizer)
        if self.tokenizer is None or (by_bytes and item.of_package and length is not None):
            assert length is not None
            lost = "" if item.of_package else ", and the texts of the inputs are not used"
            self.note(f"The model has no tokenizer: prompts are random token ids{lost}.")
            return made_up(length, self._vocabulary(), f"{self.options.seed}:{item.id}")
        if by_bytes and self.default_config is None:
            self.note("The model has no tokenizer: the bytes of each prompt are its tokens.")
        tokens = self.tokenizer.encode(item.text())
        if not tokens:
            raise UserError(f"The input {item.id} is empty.", "Give it a prompt.")
        return self._fitted(tokens)

    def run(self, prepared: Prompt, watch: Watch) -> Output:
        with explained_failures(self.name), torch.no_grad():
            self._decoder.begin(prepared)
            with watch.step(self.whole):
                generated = self._decoder.generate(prepared, watch)
        return self._finished(generated, prepared)

    def static_stages(self) -> list[StaticStage]:
        width = self._first_width or self.infer.prompt_tokens
        if width is None:
            raise UserError(
                "How long the prompts are is not known before they are prepared.", "Set infer.prompt_tokens."
            )
        model = build_on_meta(self.options, self.hf_config, self.auto_class)
        ids = torch.zeros((self.infer.batch_size, width), dtype=torch.long, device="meta")
        return self._static_decoding(model, lambda: {"input_ids": ids}, width)


class TinyLlmSession(CausalLmSession):
    """`tiny_llm`: a decoder so small that a CPU runs it in seconds; reads text byte by byte."""

    default_config = "tiny_llm"

    def load(self) -> None:
        super().load()
        if self.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            # Its operators last microseconds: on a busy machine two threads wait for each other up to 20 times longer.
            torch.set_num_threads(1)
            self.note("On a CPU this model runs in one thread; OMP_NUM_THREADS changes that.")


def _static_step(decoder: GreedyDecoder, batch: int, held: int) -> Callable[[], None]:
    ids, token = (torch.zeros((batch, length), dtype=torch.long, device="meta") for length in (held, 1))
    cache = decoder.call({"input_ids": ids}, None, None, None).past_key_values

    def step() -> None:
        # A step replaces the tensors a layer holds: copies of the layers leave the original as it is.
        mine = copy.copy(cache)
        mine.layers = [copy.copy(layer) for layer in cache.layers]
        decoder.call({"input_ids": token}, None, None, mine).logits[:, -1].argmax(-1)

    return step

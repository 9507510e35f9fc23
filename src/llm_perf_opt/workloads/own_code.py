"""DeepSeek-OCR from a local folder that brings its own Python code (`trust_remote_code`).

Such a folder hides preprocessing and decoding behind one method, `infer`, so its stages cannot be called one
by one. They are found from outside instead: the first forward of the model and all until the next is
prefill, every later one a decode step, and the vision parts, which run inside of prefill, are ranges there.

Its weights were not at hand when this was written: it is tested with a folder made for the test that has
the same method and part names, not with the published model, whose code asks for transformers 4.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.static_analysis.stage import StaticStage
from llm_perf_opt.workloads.causal_lm import DECODE, PREFILL
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.device import explained_failures, find_device, import_transformers
from llm_perf_opt.workloads.hf_models import build, read_config, size_of
from llm_perf_opt.workloads.model_session import Output, Session, Watch
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions

# Names of parts in the published code, and the ranges they become.
_PARTS = {"sam_model": "vision", "vision_model": "vision", "projector": "projector"}
_QUESTION = "Free OCR."


def has_own_code(path: Path) -> bool:
    """Whether the folder's configuration points to Python files of its own."""
    try:
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and bool(content.get("auto_map"))


@define(frozen=True)
class PreparedFile:
    """One page, as the model's own code wants it."""

    path: Path
    question: str


class OwnCodeOcrSession(Session[PreparedFile]):
    """`deepseek_ocr` with `model.path` and code of its own: stages `prefill` and `decode`; `vision` and `projector`
    are ranges inside of `prefill`."""

    stages = (PREFILL, DECODE)

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        super().__init__(model, infer)
        if not model.trust_remote_code:
            raise UserError(
                f"The model in {model.path} runs Python code from that folder.",
                "If you trust it, set model.trust_remote_code=true.",
            )
        if infer.batch_size != 1:
            raise UserError("This model reads one page at a time.", "Set infer.batch_size=1.")
        if model.cuda_graphs or model.compile:
            raise UserError("This model decodes in code of its own.", "Leave out model.cuda_graphs and model.compile.")
        self.hf_config = read_config(model)
        self._model: Any = None
        self._tokenizer: Any = None
        self._drawn: Any = None

    def load(self) -> None:
        self.device = find_device(self.options.device)
        transformers = import_transformers()
        self._model = build(self.options, self.hf_config, self.device, transformers.AutoModel)
        if not callable(getattr(self._model, "infer", None)):
            raise UserError(
                f"The code in {self.options.path} has no method `infer`, which DeepSeek-OCR has.",
                "For a model that reads text use model=hf_causal_lm.",
                ExitCode.WORKLOAD_FAILED,
            )
        with explained_failures(self.name):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(self.options.path), trust_remote_code=True, local_files_only=True
            )
        self.note("The model decodes in its own code, with its own generation settings; vision runs inside of prefill.")

    def prepare(self, items: Sequence[Item]) -> PreparedFile:
        (item,) = items
        question = item.prompt if item.image is not None and item.prompt else _QUESTION
        if item.image is not None:
            return PreparedFile(item.image, question)
        if self._drawn is None:
            self._drawn = tempfile.TemporaryDirectory(prefix="llm-perf-pages-")
        path = Path(self._drawn.name) / f"page-{len(list(Path(self._drawn.name).iterdir()))}.png"
        self.page_of(item).save(path)
        return PreparedFile(path, question)

    def run(self, prepared: PreparedFile, watch: Watch) -> Output:
        found = _Found(watch)
        with (
            explained_failures(self.name),
            torch.no_grad(),
            tempfile.TemporaryDirectory(prefix="llm-perf-infer-") as folder,
            watch.step(self.whole),
            found.watching(self._model, self.infer.max_new_tokens),
        ):
            text = self._model.infer(
                self._tokenizer,
                prompt=f"<image>\n{prepared.question}",
                image_file=str(prepared.path),
                output_path=folder,
                eval_mode=True,
            )
        tokens = found.new_tokens
        facts = {
            PREFILL: {"batch": 1, "tokens": found.prompt_tokens, "computed_tokens": found.prompt_tokens},
            DECODE: {"batch": 1, "steps": found.steps, "first_context": found.prompt_tokens + 1},
        }
        return Output([tokens], [text if isinstance(text, str) else ""], facts)

    def facts(self) -> Mapping[str, Any]:
        if self._model is None:
            return {}
        return {"class": type(self._model).__name__, "weights": "from model.path", **size_of(self._model)}

    def static_stages(self) -> list[StaticStage]:
        raise UserError(
            "The stages of a model with code of its own cannot be run on the meta device.",
            "Use the native architecture: leave model.path empty, or convert the folder to transformers' own format.",
        )


class _Found:
    """Finds the stages of one `infer` by watching the model's forwards."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._open: list[AbstractContextManager[None]] = []
        self.steps = -1  # forwards after the first
        self.prompt_tokens = 0
        self.new_tokens: list[int] = []

    @contextmanager
    def watching(self, model: Any, most: int) -> Iterator[None]:
        generate = model.generate

        def limited(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("streamer", None)  # prints to the terminal
            out = generate(*args, **(kwargs | {"max_new_tokens": most}))
            given = args[0] if args else kwargs.get("input_ids")
            if torch.is_tensor(out) and given is not None:
                self.prompt_tokens = int(given.shape[-1])
                self.new_tokens = out[0, self.prompt_tokens :].tolist()
            return out

        with ExitStack() as undo:
            undo.callback(self._close)
            model.generate = limited
            undo.callback(delattr, model, "generate")
            undo.callback(model.register_forward_pre_hook(self._next_forward).remove)
            for name, module in model.named_modules():
                part = _PARTS.get(name.rpartition(".")[2])
                if part is not None:
                    undo.callback(module.register_forward_pre_hook(partial(self._part_begins, part)).remove)
                    undo.callback(module.register_forward_hook(lambda *_: self._leave()).remove)
            yield

    def _next_forward(self, module: Any, inputs: Any) -> None:
        self.steps += 1
        if self.steps == 0:
            self._enter(self._watch.stage(PREFILL))
            return
        self._leave()  # prefill, or the step before
        if self.steps == 1:
            self._enter(self._watch.stage(DECODE))
        self._enter(self._watch.step("decode_step"))

    def _part_begins(self, name: str, *_: Any) -> None:
        self._enter(self._watch.step(name))

    def _enter(self, block: AbstractContextManager[None]) -> None:
        block.__enter__()
        self._open.append(block)

    def _leave(self) -> None:
        self._open.pop().__exit__(None, None, None)

    def _close(self) -> None:
        while self._open:
            self._leave()
        self.steps = max(self.steps, 0)

"""A vision-language model that reads pages: the DeepSeek-OCR-2 architecture of transformers.

Its forward does everything in one call; here the parts are called one by one, so that the vision encoders,
the projector, prefill and decode are stages of their own. With random weights from a configuration it runs
without a download; a local folder in the native format works the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import define, evolve

from llm_perf_opt.errors import UserError
from llm_perf_opt.static_analysis.stage import StaticStage
from llm_perf_opt.workloads.causal_lm import DECODE, PREFILL, DecodingSession
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.device import explained_failures
from llm_perf_opt.workloads.greedy import Prompt
from llm_perf_opt.workloads.hf_models import build_on_meta, preset, read_config
from llm_perf_opt.workloads.model_session import Output, Watch
from llm_perf_opt.workloads.pages import A4_AT_110_DPI, page_tiles, tile_grid, whole_page
from llm_perf_opt.workloads.tokens import ByteTokenizer, LocalTokenizer
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions

VISION, PROJECTOR = "vision", "projector"
ARCHITECTURE = "deepseek_ocr2"
# The architecture has learned queries for two picture sizes: 144 for a tile of 768, 256 for a page of 1024.
_TILE = 768
_QUERIES_OF_TILE, _QUERIES_OF_PAGE = 144, 256
_QUESTION = "Free OCR."


@define(frozen=True)
class PreparedPages:
    """One batch of pages with questions."""

    prompt: Prompt
    pages: Any  # one picture an item
    tiles: Any  # the tiles of all items behind each other; None where there are none
    tiles_per_item: list[int]


class DeepseekOcrSession(DecodingSession[PreparedPages]):
    """`deepseek_ocr`: stages `vision`, `projector`, `prefill`, `decode`."""

    stages = (VISION, PROJECTOR, PREFILL, DECODE)
    auto_class_name = "AutoModelForImageTextToText"

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        super().__init__(model, infer)
        self.hf_config = read_config(*_with_preset(model))
        if self.hf_config.model_type != ARCHITECTURE:
            raise UserError(
                f"model={model.name} runs the architecture {ARCHITECTURE}, but this is {self.hf_config.model_type}.",
                "For a model that reads text use model=hf_causal_lm.",
            )
        if infer.batch_size > 1 and model.cuda_graphs:
            self.note("Batches of unequal pages are captured once for every shape.")
        self._first: PreparedPages | None = None

    def _load_tokenizer(self) -> None:
        if self.options.path is not None:
            with explained_failures(self.name):
                self.tokenizer = LocalTokenizer(self.options.path, self.options.trust_remote_code)
        else:
            self.tokenizer = ByteTokenizer()
            self.note("The model has no tokenizer: the bytes of each question are its tokens.")

    @property
    def _side(self) -> int:
        return int(self.hf_config.vision_config.sam_config.image_size)

    def _picture_tokens(self, tiles: int) -> int:
        # One more for the learned separator behind the views.
        return _QUERIES_OF_TILE * tiles + (_QUERIES_OF_PAGE if self._side > _TILE else _QUERIES_OF_TILE) + 1

    def prepare(self, items: Sequence[Item]) -> PreparedPages:
        pictures, tiles, counts, sequences = [], [], [], []
        for item in items:
            page = self.page_of(item)
            cut = page_tiles(page, _TILE, self.infer.max_image_tiles)
            pictures.append(whole_page(page, self._side))
            tiles += cut
            counts.append(len(cut))
            sequences.append(self._tokens(item, len(cut)))
        prompt = self._padded(sequences)
        prepared = PreparedPages(prompt, self._tensor(pictures), self._tensor(tiles) if tiles else None, counts)
        if self._first is None:
            self._first = prepared
        return prepared

    def _tokens(self, item: Item, tiles: int) -> list[int]:
        assert self.tokenizer is not None
        question = item.prompt if item.image is not None and item.prompt else _QUESTION
        text = self._fitted(self.tokenizer.encode("\n" + question))
        picture = [int(self.hf_config.image_token_id)] * self._picture_tokens(tiles)
        start = self.hf_config.get_text_config(decoder=True).bos_token_id
        if start is None:
            return picture + text
        # Tokenizers that begin every text with this token would put it behind the picture.
        return [int(start), *picture, *(text[1:] if text[:1] == [start] else text)]

    def _tensor(self, pictures: list[Any]) -> Any:
        dtype = getattr(torch, self.options.dtype)
        return torch.from_numpy(np.stack(pictures)).to(self.device, dtype)

    def run(self, prepared: PreparedPages, watch: Watch) -> Output:
        inner, prompt = self._model.model, prepared.prompt
        with explained_failures(self.name), torch.no_grad():
            self._decoder.begin(prompt)
            with watch.step(self.whole):
                with watch.stage(VISION):
                    pages, tiles = _seen(inner, prepared.pages, prepared.tiles)
                with watch.stage(PROJECTOR):
                    features = _projected(inner, pages, tiles, prepared.tiles_per_item)
                generated = self._decoder.generate(prompt, watch, lambda: self._embedded(prompt, features))
        output = self._finished(generated, prompt)
        output.facts[VISION] = {"pages": prompt.batch, "tiles": sum(prepared.tiles_per_item)}
        output.facts[PROJECTOR] = {"tokens": sum(self._picture_tokens(n) for n in prepared.tiles_per_item)}
        return output

    def _embedded(self, prompt: Prompt, features: Any) -> dict[str, Any]:
        """The prompt's embeddings with those of the pictures in their places."""
        ids = prompt.inputs["input_ids"]
        embedded = self._model.get_input_embeddings()(ids)
        places = (ids == self.hf_config.image_token_id).unsqueeze(-1)
        return {"inputs_embeds": embedded.masked_scatter(places, features.to(embedded.dtype))}

    def static_stages(self) -> list[StaticStage]:
        model = build_on_meta(self.options, self.hf_config, self.auto_class)
        inner, batch = model.model, self.infer.batch_size
        if self._first is not None:
            # All items as the first batch has them on average, so that the stages fit together.
            count = round(sum(self._first.tiles_per_item) / len(self._first.tiles_per_item))
            width = self._first.prompt.width
        else:
            columns, rows = tile_grid(A4_AT_110_DPI, _TILE, self.infer.max_image_tiles)
            count = columns * rows
            width = self._picture_tokens(count) + (self.infer.prompt_tokens or len(_QUESTION))
        zeros = partial(torch.zeros, dtype=getattr(torch, self.options.dtype), device="meta")
        pages = zeros(batch, 3, self._side, self._side)
        tiles = zeros(batch * count, 3, _TILE, _TILE) if count else None
        hidden = inner.multi_modal_projector.in_features
        seen_pages = zeros(batch, self._picture_tokens(count) - count * _QUERIES_OF_TILE - 1, hidden)
        seen_tiles = zeros(batch * count, _QUERIES_OF_TILE, hidden) if count else None
        projector = partial(_projected, inner, seen_pages, seen_tiles, [count] * batch)
        ids = torch.zeros((batch, width), dtype=torch.long, device="meta")
        shape = {"batch": batch, "pages": batch, "tiles": batch * count}
        return [
            StaticStage(VISION, lambda: _seen(inner, pages, tiles), 1, shape),
            StaticStage(PROJECTOR, projector, 1, shape | {"tokens": batch * self._picture_tokens(count)}),
            *self._static_decoding(model, lambda: {"inputs_embeds": model.get_input_embeddings()(ids)}, width),
        ]


def _with_preset(options: ModelOptions) -> tuple[ModelOptions, dict[str, Any] | None]:
    """`model.config.preset` chooses the shape that the rest of `model.config` changes."""
    if options.path is not None:
        return options, None
    changes = dict(options.config)
    size = changes.pop("preset", "default")
    names = {"default": "deepseek_ocr", "tiny": "deepseek_ocr_tiny"}
    if size not in names:
        raise UserError(f"model.config.preset={size!r} is not known.", f"Known are {', '.join(names)}.")
    return evolve(options, config=changes), preset(names[size])


def _seen(inner: Any, pages: Any, tiles: Any) -> tuple[Any, Any]:
    """What the vision encoders make of pages and tiles, which have different sizes."""
    seen = inner.vision_tower(pages).last_hidden_state
    return seen, None if tiles is None else inner.vision_tower(tiles).last_hidden_state


def _projected(inner: Any, pages: Any, tiles: Any, counts: Sequence[int]) -> Any:
    """Everything seen, in the width of the language model: of each item its tiles, its page, the separator."""
    project = inner.multi_modal_projector
    pages = project(pages)
    width = pages.shape[-1]
    parts: Sequence[Any] = [None] * len(counts)
    if tiles is not None:
        parts = torch.split(project(tiles), list(counts), dim=0)
    rows = []
    for page, part in zip(pages, parts, strict=True):
        if part is not None:
            rows.append(part.reshape(-1, width))
        rows += [page, inner.view_separator[None]]
    return torch.cat(rows, dim=0)

"""The one interface behind which every model lives.

A session loads a model, turns inputs into tensors, and runs one batch through the model's stages under a
watch. Whoever measures decides what the watch does with a stage: mark it, time it, or neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from attrs import define

from llm_perf_opt.static_analysis.stage import StaticStage
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.pages import draw_page, open_page
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions

P = TypeVar("P")


class Watch(Protocol):
    """Looks on while a session runs."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """One of the session's stages. Ends when the device has done the stage's work, not when it was queued."""
        ...

    def step(self, name: str) -> AbstractContextManager[None]:
        """A range around stages or inside one; nobody waits for the device at its end."""
        ...


@define(frozen=True)
class Output:
    """What came of one batch."""

    tokens: list[list[int]]  # new tokens of each sequence, up to and with its end-of-text token
    texts: list[str]
    # How much work each stage had, as in {"prefill": {"tokens": 2048}, "decode": {"steps": 15}}.
    facts: dict[str, dict[str, int]]


class Session(ABC, Generic[P]):
    """A model that can be run. `P` is what `prepare` makes of inputs."""

    # The stages in the order they run; ranges inside a stage are not among them.
    stages: tuple[str, ...] = ()
    # The range around all stages.
    whole = "generate"
    # Where the shape of the model stands for those who know formulas: a configuration of transformers.
    hf_config: Any = None

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        self.options = model
        self.infer = infer
        # What a reader of the numbers should know, one sentence each.
        self.notes: list[str] = []
        self.device: Any = None

    @property
    def name(self) -> str:
        return self.options.name

    @abstractmethod
    def load(self) -> None:
        """Build the model on its device. Everything slow and unmeasured happens here and in `prepare`."""

    @abstractmethod
    def prepare(self, items: Sequence[Item]) -> P:
        """Tensors of one batch, on the device."""

    @abstractmethod
    def run(self, prepared: P, watch: Watch) -> Output:
        """One batch through all stages."""

    @abstractmethod
    def static_stages(self) -> list[StaticStage]:
        """The stages on the meta device, with the shapes of the options (and of the first batch, once prepared).

        Needs neither `load` nor a GPU, and no memory to speak of."""

    def facts(self) -> Mapping[str, Any]:
        """What the model is: parameters, layers, types; empty before `load`."""
        return {}

    def page_of(self, item: Item) -> Any:
        """The picture of an input; a text becomes one."""
        if item.image is not None:
            return open_page(item.image)
        self.note("Inputs without a picture are drawn as a page.")
        return draw_page(item.text())

    def note(self, sentence: str) -> None:
        """Something the reader of the numbers should know, said once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

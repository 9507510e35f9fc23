"""`dummy_shallow_resnet`: pictures through a small residual network, one stage with nested ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from llm_perf_opt.dnn_models.shallow_resnet import ShallowResNet
from llm_perf_opt.errors import UserError
from llm_perf_opt.static_analysis.stage import StaticStage
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.device import explained_failures, find_device
from llm_perf_opt.workloads.hf_models import size_of
from llm_perf_opt.workloads.model_session import Output, Session, Watch
from llm_perf_opt.workloads.pages import whole_page
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions, nearest

FORWARD = "forward"
_SHAPE = {"width": 32, "classes": 10, "image_size": 224}


class ShallowResNetSession(Session[Any]):
    """One stage, `forward`; inside it `stem`, `stage1` to `stage4` and `head`. The output is a class a picture."""

    stages = (FORWARD,)
    whole = "classify"

    def __init__(self, model: ModelOptions, infer: InferOptions) -> None:
        super().__init__(model, infer)
        for refused, given in (("path", model.path), ("cuda_graphs", model.cuda_graphs), ("compile", model.compile)):
            if given:
                raise UserError(f"model={model.name} does not know model.{refused}.", f"Leave out model.{refused}.")
        for key, value in model.config.items():
            if key not in _SHAPE:
                raise UserError(
                    f"model.config.{key} is not a setting of {model.name}.{nearest(key, _SHAPE)}",
                    f"Known are {', '.join(_SHAPE)}.",
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"model.config.{key}={value!r} is not a whole number above 0.", "Correct it.")
        self._shape = _SHAPE | dict(model.config)
        self._model: Any = None

    def load(self) -> None:
        self.device = find_device(self.options.device)
        torch.manual_seed(self.options.seed)
        with explained_failures(self.name), self.device:
            self._model = self._network().to(getattr(torch, self.options.dtype))
        self.note("Weights are random: times are those of the architecture, classes mean nothing.")

    def _network(self) -> ShallowResNet:
        network = ShallowResNet(self._shape["width"], self._shape["classes"])
        network.range_name = None  # the stage itself is the range around the parts
        network.eval().requires_grad_(False)
        return network

    def prepare(self, items: Sequence[Item]) -> Any:
        pictures = [whole_page(self.page_of(item), self._shape["image_size"]) for item in items]
        return torch.from_numpy(np.stack(pictures)).to(self.device, getattr(torch, self.options.dtype))

    def run(self, prepared: Any, watch: Watch) -> Output:
        with explained_failures(self.name), torch.no_grad(), watch.step(self.whole), watch.stage(FORWARD):
            classes = self._model.forward_with_nvtx(prepared).argmax(-1)
        found = classes.tolist()
        texts = [f"class {number}" for number in found]
        # A class is no token: nothing is generated.
        return Output([[] for _ in found], texts, {FORWARD: {"pictures": len(found)}})

    def facts(self) -> Mapping[str, Any]:
        if self._model is None:
            return {}
        return {"class": "ShallowResNet", "weights": "random", **size_of(self._model), **self._shape}

    def static_stages(self) -> list[StaticStage]:
        dtype, side = getattr(torch, self.options.dtype), self._shape["image_size"]
        with torch.device("meta"):
            network = self._network().to(dtype)
            pixels = torch.zeros((self.infer.batch_size, 3, side, side), dtype=dtype)

        shape = {"batch": self.infer.batch_size, "pictures": self.infer.batch_size}
        return [StaticStage(FORWARD, lambda: network(pixels).argmax(-1), 1, shape)]

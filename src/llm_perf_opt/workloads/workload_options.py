"""What a workload can be asked for, as plain values; how they are written on a command line is not known here.

What is wrong in a way that the declarations of the keys (`llm_perf_opt.options`) cannot know is refused here, before
anything is loaded, with the key a user would have to change.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, define, field

from llm_perf_opt.errors import UserError

_SHORT_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
DTYPES = _SHORT_DTYPES | {name: name for name in _SHORT_DTYPES.values()}
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, where something known is close to the word."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


def refuse(key: str, value: object, wanted: str) -> UserError:
    """The error for a value that cannot be used."""
    return UserError(f"{key}={value!r} is not possible: {wanted}.", f"Set {key} to such a value.")


def refuse_no_folder(path: Path) -> None:
    """Raise where `model.path` is no folder of a model."""
    if not (path / "config.json").is_file():
        raise UserError(
            f"model.path={path} is not a model folder: there is no {path / 'config.json'}.",
            "Give a local folder in Hugging Face's layout; nothing is downloaded. "
            "For random weights leave model.path empty and set model.config.",
        )


def _to_dtype(value: object) -> str:
    text = str(value).removeprefix("torch.").lower()
    if text not in DTYPES:
        raise UserError(
            f"model.dtype={value!r} is unknown.{nearest(text, DTYPES)}",
            f"Known are {', '.join(dict.fromkeys(DTYPES.values()))}.",
        )
    return DTYPES[text]


def _to_device(value: object) -> str:
    text = str(value).strip().lower()
    kind, colon, number = text.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not number.isdigit()) or (kind == "cpu" and colon):
        raise UserError(f"device={value!r} is not known.", "Write device=cpu, device=cuda or device=cuda:0.")
    return "cuda:0" if text == "cuda" else text


def _to_compile(value: object) -> str:
    if value in (None, False, "", "off", "false"):
        return ""
    mode = "default" if value is True else str(value)
    if mode not in COMPILE_MODES:
        raise UserError(
            f"model.compile={value!r} is unknown.{nearest(mode, COMPILE_MODES)}",
            f"Known are false, {', '.join(COMPILE_MODES)}.",
        )
    return mode


def _to_path(value: object) -> Path | None:
    return None if value in (None, "") else Path(str(value)).expanduser()


def _to_prompts(value: object) -> tuple[str, ...]:
    if value in (None, ""):
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        words = list(value)
        if all(isinstance(word, str) for word in words):
            return tuple(words)
    raise refuse("dataset.prompts", value, "it has to be a list of texts, or a .txt file with one prompt per line")


@define(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how it is built."""

    name: str = "tiny_llm"
    # A local folder in the layout of Hugging Face; without one, weights are random and nothing is downloaded.
    path: Path | None = field(default=None, converter=_to_path)
    dtype: str = field(default="bfloat16", converter=_to_dtype)
    device: str = field(default="cuda:0", converter=_to_device)
    # "sdpa", "eager", "flash_attention_2", …; None leaves the choice to transformers.
    attn_implementation: str | None = None
    # The model's own configuration: all of it for random weights, changes to it for a local path.
    config: Mapping[str, Any] = Factory(dict)
    # Runs Python code that lies in `path`: only for folders you trust.
    trust_remote_code: bool = False
    compile: str = field(default="", converter=_to_compile)  # a mode of torch.compile for decode steps; "" is off
    cuda_graphs: bool = False  # decode steps replay one captured CUDA graph
    seed: int = 0  # of random weights and made-up prompts

    def __attrs_post_init__(self) -> None:
        if self.cuda_graphs and self.compile:
            raise UserError(
                f"model.cuda_graphs=true and model.compile={self.compile} both apply to the decode steps.",
                "Choose one; model.compile=reduce-overhead is torch.compile with CUDA graphs.",
            )
        if self.cuda_graphs and self.device == "cpu":
            raise UserError(
                "model.cuda_graphs=true needs a GPU, and device is cpu.", "Set device=cuda:0, or leave it out."
            )


@define(frozen=True, kw_only=True)
class InferOptions:
    """How much is generated, and from how much."""

    max_new_tokens: int = 16
    batch_size: int = 1
    # The text of every prompt is made exactly this long; None takes prompts as they are.
    prompt_tokens: int | None = None
    # A page is also looked at in up to so many tiles of full resolution (DeepSeek-OCR-2); 0 is the page as a whole.
    max_image_tiles: int = 6
    # Go on behind the end-of-text token. None: yes for random weights, where it comes up by chance, else no.
    ignore_eos: bool | None = None


@define(frozen=True, kw_only=True)
class SamplingOptions:
    """Which items of the dataset are run, and in what order."""

    num_epochs: int = 1
    # None: all of them.
    num_samples_per_epoch: int | None = None
    randomize: bool = False
    seed: int = 0


@define(frozen=True, kw_only=True)
class DatasetOptions:
    """Where the inputs come from. With nothing given, the prompts that ship with the package are used."""

    root: Path | None = field(default=None, converter=_to_path)
    # A text file with a path a line, each relative to `root` or to the list; or a glob below `root`.
    subset_filelist: str | None = None
    # Prompts as they are, or one `.txt` file with a prompt a line. Beside files they are asked about each file.
    prompts: tuple[str, ...] = field(default=(), converter=_to_prompts)
    sampling: SamplingOptions = Factory(SamplingOptions)

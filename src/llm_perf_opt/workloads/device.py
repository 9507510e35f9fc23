"""The device a model runs on: whether it is there, how to wait for it, and how much memory was used.

torch is imported when a model is about to run and not before: reading recordings must work without it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ExitCode, MissingTool, UserError

_NO_GPU = (
    "Set device=cpu, or install a CUDA build of torch and a driver; `llm-perf doctor` says what this machine lacks."
)


def import_torch() -> Any:
    """torch, or how to get it."""
    return imported("torch", "Running a model needs PyTorch")


def import_transformers() -> Any:
    """transformers, or how to get it."""
    import_torch()
    return imported("transformers", "This model needs transformers")


def imported(name: str, needed: str) -> Any:
    """A module of the extra `torch`; `needed`: the beginning of the sentence where it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingTool(
            f"{needed}, and it cannot be imported ({error}).", "Install it: pip install 'llm-perf-opt[torch]'."
        ) from error


def find_device(name: str) -> Any:
    """The torch device of that name, if the machine has it."""
    torch = import_torch()
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if torch.version.cuda is None and torch.version.hip is None:
        raise MissingTool(
            f"device={name} was requested, but the installed torch {torch.__version__} is built without CUDA.", _NO_GPU
        )
    if not torch.cuda.is_available():
        raise MissingTool(f"device={name} was requested, but torch finds no CUDA GPU here.", _NO_GPU)
    if device.index >= torch.cuda.device_count():
        raise MissingTool(
            f"device={name} was asked for, but this machine has {torch.cuda.device_count()} GPU(s).",
            f"Set device=cuda:0 to cuda:{torch.cuda.device_count() - 1}.",
        )
    torch.cuda.set_device(device)
    return device


def waiter(device: Any) -> Callable[[], None]:
    """A function that returns when the device has nothing left to do."""
    if device.type != "cuda":
        return lambda: None
    torch = import_torch()
    return lambda: torch.cuda.synchronize(device)


def forget_others() -> None:
    """Give back what an earlier job of this process left: the memory of this one is to be its own."""
    gc.collect()
    cuda = import_torch().cuda
    if cuda.is_initialized():
        cuda.empty_cache()
    with suppress(OSError, AttributeError):  # where there is another C library
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak(device: Any) -> bool:
    """Begin to watch for the most memory anew; False where that cannot be, and it is that since the process began."""
    if device.type == "cuda":
        import_torch().cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_memory(device: Any, *, forgot: bool = False) -> dict[str, int | str]:
    """The most memory in use so far, in bytes, and what exactly that number is. `forgot`: what `forget_peak` said."""
    if device.type == "cuda":
        cuda = import_torch().cuda
        return {
            "peak_allocated_bytes": cuda.max_memory_allocated(device),
            "peak_reserved_bytes": cuda.max_memory_reserved(device),
            "of": "GPU memory of PyTorch's allocator during the timed passes",
        }
    if forgot and (found := re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)):
        return {
            "peak_resident_bytes": int(found[1]) * 1024,
            "of": "resident memory of this process during the timed passes",
        }
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak_resident_bytes": peak, "of": "resident memory of this process since its start"}


@contextmanager
def explained_failures(name: str) -> Iterator[None]:
    """What goes wrong in a model's own code becomes a sentence with a way out."""
    torch = import_torch()
    try:
        yield
    except UserError:
        raise
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"The model {name} does not fit into the memory of the GPU ({_first_line(error)}).",
            "Lower infer.batch_size, infer.prompt_tokens or the size in model.config, or use model.dtype=bfloat16.",
            ExitCode.WORKLOAD_FAILED,
        ) from error
    except Exception as error:
        if os.environ.get("LLM_PERF_TRACEBACK"):
            raise
        raise UserError(
            f"The model {name} failed: {type(error).__name__}: {_first_line(error)}",
            "Set LLM_PERF_TRACEBACK=1 to see where.",
            ExitCode.WORKLOAD_FAILED,
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"

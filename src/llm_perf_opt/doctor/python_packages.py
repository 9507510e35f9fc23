"""Which Python packages there are and what PyTorch can use, asked in a process of its own: loading them may crash or hang."""

from __future__ import annotations

import json
import sys

import cattrs

from llm_perf_opt.doctor.machine_facts import Package, Torch
from llm_perf_opt.doctor.probe import ask
from llm_perf_opt.readers.ncu_module import module_folders

_TORCH_TIMEOUT_S = 120.0
_PACKAGES = ("ncu-report", "nvtx", "hydra-core", "transformers")
_MODULES = {"ncu-report": "ncu_report", "nvtx": "nvtx", "hydra-core": "hydra"}  # loaded too; transformers is slow

_ASK_PACKAGES = """
import importlib, importlib.metadata, json, sys
found = []
packages, more = json.loads(sys.argv[1])
sys.path += more  # last: what is installed comes first
for name, module in packages.items():
    try:
        version, problem = importlib.metadata.version(name), ""
    except importlib.metadata.PackageNotFoundError:
        version, problem = None, ""
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            problem = str(error) if version else ""
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            version = version or f"of {importlib.import_module(module).__file__}"
    found.append({"name": name, "version": version, "problem": problem})
print("\\n" + json.dumps(found))
"""
_ASK_TORCH = """
import json
try:
    import torch
except ModuleNotFoundError as error:
    found = {"version": None, "problem": "" if error.name == "torch" else str(error)}
except BaseException as error:
    found = {"version": "unknown", "problem": f"{type(error).__name__}: {error}"}
else:
    found = {"version": torch.__version__, "cuda": torch.version.cuda, "sees_gpu": False, "problem": ""}
    try:
        found["sees_gpu"] = torch.cuda.is_available()
        if found["sees_gpu"]:
            torch.zeros(1, device="cuda")
    except BaseException as error:
        found["problem"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(found))
"""


def find_packages() -> list[Package]:
    packages = {name: _MODULES.get(name, "") for name in _PACKAGES}
    asked = json.dumps([packages, [str(folder) for folder in module_folders()]])  # ncu brings its own ncu_report
    answer = _ask_python(_ASK_PACKAGES, asked)
    if isinstance(answer, list):
        return cattrs.structure(answer, list[Package])
    return [Package(name, problem=f"Python could not be queried: {answer}") for name in _PACKAGES]


def find_torch() -> Torch:
    answer = _ask_python(_ASK_TORCH, "", _TORCH_TIMEOUT_S)
    if isinstance(answer, dict):
        return cattrs.structure(answer, Torch)
    return Torch("unknown", problem=str(answer))


def _ask_python(script: str, argument: str, timeout_s: float | None = None) -> object:
    """The last line that a child prints, as JSON: packages may print, crash or hang while they load."""
    # Not isolated: the packages that programs of this shell would find are the ones to ask about. But nothing is
    # loaded from the working folder (-P), which may be untrusted.
    done = ask([sys.executable, "-P", "-W", "ignore", "-c", script, argument], timeout_s=timeout_s)
    try:
        return json.loads(done.output.splitlines()[-1])
    except (ValueError, IndexError):
        lines = [line for line in done.errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with code {done.exit_code}"

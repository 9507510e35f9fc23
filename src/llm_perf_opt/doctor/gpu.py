"""Is there a GPU, does it answer, and who else uses it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import define

from llm_perf_opt.doctor.checks import BOTH, COUNTERS, Check
from llm_perf_opt.doctor.machine_facts import Facts, Trial

_NO_GPU_FIX = "llm-perf demo  (a full report from a recording; `llm-perf report` needs no GPU either)"
_WITH_DRIVER = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"
_RESTART = "docker run --gpus all …  (a container that lost its GPU must be started again)"
# What nvidia-smi says, and what helps.
_DRIVER_FIXES = {
    "version mismatch": "sudo reboot  (the driver was updated while it was loaded)",
    "communicate with the NVIDIA driver": "sudo modprobe nvidia && nvidia-smi  (if that fails: install the driver for this kernel, and look at dmesg)",
    "did not answer": "dmesg | grep -i -E 'nvrm|xid'  (a GPU that fell off the bus needs a reboot)",
    "Insufficient Permissions": _RESTART,
    "Unknown Error": _RESTART,
    "": "nvidia-smi; dmesg | grep -i nvidia",
}
_MUCH_MEMORY_MIB = 2048
_BUSY_PERCENT = 10
_LEAST_CAPABILITY = 7.0  # what ncu supports since 2020


@define(frozen=True)
class Device:
    """One line of nvidia-smi."""

    name: str
    driver: str
    capability: float | None
    memory_mib: int | None
    used_mib: int | None
    busy_percent: int | None
    mig: bool
    compute_mode: str


def devices(facts: Facts) -> list[Device]:
    """The GPUs nvidia-smi lists."""
    query = facts.gpu.query
    if query is None or query.exit_code != 0:
        return []
    lines = [[cell.strip() for cell in line.split(",")] for line in query.output.splitlines()]
    names = facts.gpu.query_fields
    # Another number of cells: "No devices were found"
    return [_device(dict(zip(names, cells, strict=True))) for cells in lines if len(cells) == len(names)]


def _device(row: dict[str, str]) -> Device:
    capability = row.get("compute_cap", "")
    return Device(
        name=row["name"],
        driver=row["driver_version"],
        capability=float(capability) if re.fullmatch(r"\d+\.\d+", capability) else None,
        memory_mib=_whole(row["memory.total"]),
        used_mib=_whole(row["memory.used"]),
        busy_percent=_whole(row.get("utilization.gpu", "")),
        mig=row.get("mig.mode.current", "") == "Enabled",
        compute_mode=row["compute_mode"],
    )


def undisturbed(facts: Facts) -> Trial | None:
    """The small kernel without a profiler."""
    return next((trial for trial in facts.trials if trial.under == ""), None)


def has_gpu(facts: Facts) -> bool:
    """A GPU that programs can use, as far as is known."""
    tried = undisturbed(facts)
    return tried.status == "captured" if tried is not None else bool(devices(facts))


def check_gpu(facts: Facts) -> list[Check]:
    """The GPU and its driver."""
    query, found = facts.gpu.query, devices(facts)
    if found:
        return [_found(found)]
    tried = undisturbed(facts)
    if tried is not None and tried.status == "captured":
        why = "clocks, memory and other users of the GPU cannot be recorded with the run"
        problem = "is not there" if query is None else f"says: {_said(facts)}"
        return [Check("GPU", "warning", f"{tried.device}, but nvidia-smi {problem}", why, _WITH_DRIVER)]
    why = "without a GPU there is nothing to profile; recordings can still be read"
    if query is None and not facts.gpu.device_nodes:
        found_text = "no NVIDIA GPU: there is neither nvidia-smi nor /dev/nvidia*"
        start = "docker run --gpus all …  (on a machine with a GPU); or " if facts.privileges.container else ""
        return [Check("GPU", "missing", found_text, why, start + _NO_GPU_FIX, BOTH)]
    if query is None:
        text = "there are device files (/dev/nvidia*) but no nvidia-smi: the driver's programs are not installed here"
        return [Check("GPU", "error", text, why, _WITH_DRIVER, BOTH)]
    said = _said(facts)
    if "No devices were found" in said or (query.exit_code == 0 and not said):
        fix = "lspci | grep -i nvidia; dmesg"
        return [Check("GPU", "missing", "nvidia-smi runs but finds no devices", why, fix, BOTH)]
    fix = next(fix for sign, fix in _DRIVER_FIXES.items() if sign in said)
    return [Check("GPU", "error", f"nvidia-smi fails: {said}", why, fix, BOTH)]


def check_visible(facts: Facts) -> list[Check]:
    """Variables that hide GPUs from programs."""
    value = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if value is None or not devices(facts):
        return []
    if value.strip() in ("", "-1", "none", "NoDevFiles"):
        text = f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU from the program"
        why = "the program would run on the CPU or fail, and the profilers see nothing"
        return [Check("visible GPUs", "error", text, why, "unset CUDA_VISIBLE_DEVICES", BOTH)]
    return [Check("visible GPUs", "ok", f"CUDA_VISIBLE_DEVICES={value}")]


def check_kernel(facts: Facts) -> list[Check]:
    """Does a kernel run at all?"""
    tried = undisturbed(facts)
    if tried is None:
        return []
    if tried.status == "captured":
        return [Check("CUDA", "ok", f"a small kernel ran on {tried.device} ({tried.seconds:.1f} s)")]
    why = "a program that cannot use the GPU by itself cannot be profiled"
    fix = "nvidia-smi; echo $CUDA_VISIBLE_DEVICES; ls -l /dev/nvidia*"
    if "libcuda" in tried.problem:
        fix = f"{_WITH_DRIVER}  (or install the driver)"
    return [Check("CUDA", "error", f"a small kernel did not run: {tried.problem}", why, fix, BOTH)]


def check_use(facts: Facts) -> Iterator[Check]:
    """Others on the GPU, and rules about sharing it."""
    found = devices(facts)
    if not found:
        return
    users = _users(facts)
    used = max(d.used_mib or 0 for d in found)
    busy = max(d.busy_percent or 0 for d in found)
    name = "use of the GPU"
    why = "other users of the GPU change what is measured, and kernel replay may lack the memory to save and restore"
    fix = "nvidia-smi  (wait for them, stop them, or choose another GPU: export CUDA_VISIBLE_DEVICES=N)"
    if users:
        yield Check(name, "warning", f"in use by {'; '.join(users)}", why, fix)
    elif used > _MUCH_MEMORY_MIB or busy > _BUSY_PERCENT:
        text = f"{used / 1024:.1f} GiB of its memory and {busy} % of its time are in use by processes that cannot be seen from here"
        yield Check(name, "warning", text, why, fix)
    else:
        yield Check(name, "ok", "nobody else uses it")
    yield from _compute_mode(found, bool(users))
    if any(device.mig for device in found):
        text = "MIG is on: programs see a slice of the GPU"
        why = "ncu cannot lock clocks on a slice, and counters of units that slices share are missing"
        yield Check("MIG", "warning", text, why, "sudo nvidia-smi -mig 0  (needs an idle GPU)")


def check_capability(facts: Facts) -> list[Check]:
    """GPUs that ncu does not know any more."""
    old = [d for d in devices(facts) if d.capability is not None and d.capability < _LEAST_CAPABILITY]
    if not old:
        return []
    text = f"{old[0].name} has compute capability {old[0].capability}, and ncu needs {_LEAST_CAPABILITY}"
    why = "its counters can only be read with nvprof of CUDA 10 or older; timelines work"
    return [Check("GPU generation", "error", text, why, "llm-perf profile --no-counters -- CMD", COUNTERS)]


def _found(found: list[Device]) -> Check:
    names = list(dict.fromkeys(device.name for device in found))
    counted = [f"{n} × {name}" if (n := sum(d.name == name for d in found)) > 1 else name for name in names]
    first = found[0]
    memory = f", {first.memory_mib / 1024:.0f} GiB" if first.memory_mib else ""
    capability = f", compute capability {first.capability}" if first.capability else ""
    return Check("GPU", "ok", f"{', '.join(counted)}{memory}{capability}, driver {first.driver}")


def _said(facts: Facts) -> str:
    query = facts.gpu.query
    if query is None:
        return ""
    lines = [line.strip() for line in f"{query.output}\n{query.errors}".splitlines() if line.strip()]
    return " ".join(lines)[:300] or f"nothing, and ends with code {query.exit_code}"


def _users(facts: Facts) -> list[str]:
    answer = facts.gpu.processes
    if answer is None or answer.exit_code != 0:
        return []
    users = []
    for line in answer.output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdigit():
            memory = _whole(cells[2])
            size = f", {memory / 1024:.1f} GiB" if memory is not None else ""
            name = re.split(r"[/\\]", cells[1])[-1]
            users.append(f"{name} (process {cells[0]}{size})")
    return users


def _compute_mode(found: list[Device], in_use: bool) -> list[Check]:
    modes = {device.compute_mode for device in found}
    fix = "sudo nvidia-smi -c DEFAULT"
    if "Prohibited" in modes:
        text = "the compute mode is Prohibited: no program may use CUDA"
        return [Check("compute mode", "error", text, "nothing can run on the GPU", fix, BOTH)]
    if "Exclusive_Process" in modes:
        why = "a program with several processes on one GPU fails, and so does any program while somebody else uses the GPU"
        text = "the compute mode is Exclusive_Process: one process at a time"
        if in_use and len(found) == 1:
            return [Check("compute mode", "error", f"{text}, and another one is there", why, fix, BOTH)]
        return [Check("compute mode", "warning", text, why, fix)]
    return []


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None

"""Are nsys and ncu there, do they know what is asked of them, and did a real recording come out?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_perf_opt.doctor.checks import COUNTERS, TIMELINE, Check, Purpose
from llm_perf_opt.doctor.known import known
from llm_perf_opt.doctor.machine_facts import Facts, Profiler, Trial
from llm_perf_opt.doctor.trial import DRAM, INSTRUCTIONS
from llm_perf_opt.metrics.catalogue import TIME
from llm_perf_opt.nsight.messages import TEXTS

_NAMES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_WHY = {
    "nsys": "it records the timeline: which kernel ran when, for how long, in which region",
    "ncu": "it reads the hardware counters: bytes, FLOPs, what limits a kernel",
}

# What is lost with an ncu that does not know an option.
_LOST = {
    "--nvtx-push-pop-scope": "counters of backward passes, which autograd launches from a thread of its own, cannot be chosen by region",
    "--import-sass": "reports are larger, because the machine code cannot be left out of them",
    "--clock-control": "this version decides whether clocks are locked",
    "--cache-control": "caches are flushed before every kernel, and DRAM figures are too large",
}


def trial_under(facts: Facts, tool: str) -> Trial | None:
    """The small kernel under a profiler."""
    return next((trial for trial in facts.trials if trial.under == tool), None)


def worked(facts: Facts, tool: str) -> bool:
    """It was tried, and gave data."""
    trial = trial_under(facts, tool)
    return trial is not None and trial.status != "nothing"


def failure_codes(facts: Facts, tool: str) -> list[str]:
    """Why a trial failed, as codes of the diagnoses."""
    trial = trial_under(facts, tool)
    return [d["code"] for d in trial.diagnoses] if trial is not None and trial.status == "nothing" else []


def check_nsys(facts: Facts) -> list[Check]:
    return [_installed(facts.nsys, TIMELINE, facts)]


def check_sampling(facts: Facts) -> list[Check]:
    """Bytes that the whole GPU moves, sampled by nsys."""
    why_not, gpus = facts.nsys.cannot_sample, facts.gpu.query
    if why_not is None or gpus is None or gpus.exit_code != 0:  # without a GPU there is nothing to sample
        return []
    name = "bytes of the whole GPU"
    if not why_not:
        return [Check(name, "ok", "nsys can sample them along with the timeline")]
    why = "the bytes of a region are then the sum over its kernels, which is less exact"
    fix = "dcgmi profile --pause  (if DCGM samples the GPU), or end the other profiler: nvidia-smi"
    return [Check(name, "warning", why_not, why, fix)]


def check_ncu(facts: Facts) -> list[Check]:
    return [_installed(facts.ncu, COUNTERS, facts)]


def check_importer(facts: Facts) -> list[Check]:
    """The part of nsys that makes a report, and the libraries it does not bring along."""
    if facts.nsys.path is None:
        return []
    name, importer = "nsys importer", facts.importer
    missing = missing_libraries(facts)
    if worked(facts, "nsys"):
        return [Check(name, "ok", "made a report from what was recorded")]
    if missing:
        why = "without them nsys records the program, exits 0 and leaves a .qdstrm that nothing can read"
        text = f"does not start: {', '.join(missing)} cannot be found"
        return [Check(name, "missing", text, why, install_libraries(missing, facts), TIMELINE)]
    if importer.path is None:
        return [Check(name, "ok", "is not next to nsys, so its libraries were not checked")]
    if importer.libraries is None or importer.libraries.exit_code != 0:
        return [Check(name, "ok", f"{importer.path}; its libraries could not be checked without ldd")]
    return [Check(name, "ok", "all its libraries were found")]


def check_timeline(facts: Facts) -> list[Check]:
    """The timeline of a small kernel."""
    trial = trial_under(facts, "nsys")
    name = "timeline, tried"
    if trial is None or trial.status == "nothing":
        return _failed(name, trial, "nsys", TIMELINE)
    text = f"{trial.kernels} kernels recorded ({trial.seconds:.1f} s)"
    has_nvtx = any(package.name == "nvtx" and package.version and not package.problem for package in facts.packages)
    if has_nvtx and not trial.ranges:
        why = "without ranges there are no regions to report"
        fix = "env | grep -i nvtx  (NVTX_INJECTION64_PATH must not be set)"
        return [Check(name, "warning", f"{text}, but the NVTX range around them is not in it", why, fix)]
    return [Check(name, "ok", f"{text}, {trial.ranges} NVTX range" if has_nvtx else text)]


def check_counters(facts: Facts) -> list[Check]:
    """The counters of a small kernel."""
    trial = trial_under(facts, "ncu")
    name = "counters, tried"
    if trial is None or trial.status == "nothing":
        # Where a check of its own says more about the reason, that one counts.
        explained = {"COUNTER_PERMISSION", "DRIVER_RESOURCE_BUSY"} & set(failure_codes(facts, "ncu"))
        return _failed(name, trial, "ncu", () if explained else COUNTERS)
    instructions = trial.counters.get(INSTRUCTIONS)
    duration = trial.counters.get(TIME)
    measured = [
        f"{duration:,.0f} ns" if duration is not None else "",
        f"{instructions:,.0f} instructions" if instructions is not None else "",
    ]
    text = f"{trial.kernels} launches profiled ({trial.seconds:.1f} s): {', '.join(m for m in measured if m)}"
    if not instructions:
        why = "a counter that is never 0 was not measured, so others cannot be trusted either"
        return [
            Check(name, "error", f"{text}; no instructions were counted", why, "nvidia-smi -q; ncu --version", COUNTERS)
        ]
    if not any(name in trial.counters for name in DRAM):
        why = "this GPU or driver reports no DRAM traffic, so the roofline has no memory part"
        return [Check(name, "warning", f"{text}; no DRAM counter", why, "ncu --query-metrics | grep -i bytes")]
    return [Check(name, "ok", text)]


def missing_libraries(facts: Facts) -> list[str]:
    """What `ldd` did not find for the importer."""
    answer = facts.importer.libraries
    if answer is None:
        return []
    return list(dict.fromkeys(re.findall(r"^\s*(\S+) => not found", answer.output, re.MULTILINE)))


def install_libraries(missing: Sequence[str], facts: Facts) -> str:
    """The command that brings them, for this system."""
    packages = known().libraries
    family = _family(facts)
    named = list(dict.fromkeys(packages[library][family] for library in missing if library in packages))
    unknown = [library for library in missing if library not in packages]
    search = "dnf provides '*/{}'" if family == "rhel" else "apt-file search {}"
    parts = [f"{_installer(facts)} {' '.join(named)}"] if named else []
    parts += [search.format(library) for library in unknown]
    return "; ".join(parts)


def _family(facts: Facts) -> str:
    return "rhel" if re.search(r"\b(?:rhel|fedora|centos|rocky|almalinux|amzn)\b", facts.system) else "debian"


def _installer(facts: Facts) -> str:
    sudo = "" if facts.privileges.root else "sudo "
    return f"{sudo}dnf install -y" if _family(facts) == "rhel" else f"{sudo}apt-get install -y"


def _install(tool: str, facts: Facts) -> str:
    product = _NAMES[tool].lower().replace(" ", "-")
    return (
        f"{_installer(facts)} cuda-{product}-13-0  (from NVIDIA's package repository, or the one of your CUDA version; "
        f"or https://developer.nvidia.com/{product}; if it is elsewhere: export LLM_PERF_{tool.upper()}=/path/to/{tool})"
    )


def _installed(profiler: Profiler, purpose: tuple[Purpose, ...], facts: Facts) -> Check:
    name, variable = _NAMES[profiler.name], f"LLM_PERF_{profiler.name.upper()}"
    if profiler.path is None:
        # The list of places is for who set them up unusually; the error of `llm-perf profile` has it.
        problem = re.sub(r" \(/[^)]*\)", "", profiler.problem)
        fix = f"unset {profiler.named}  (or correct it)" if profiler.named else _install(profiler.name, facts)
        return Check(name, "missing", problem, _WHY[profiler.name], fix, purpose)
    others = f"; also installed: {', '.join(profiler.others)} (choose with {variable}=PATH)" if profiler.others else ""
    text = f"{profiler.name} {profiler.version} at {profiler.path} (from {profiler.source}){others}"
    newer = f"Install a newer {name}, or choose another one: export {variable}=/path/to/{profiler.name}"
    if profiler.refused:
        why = "`llm-perf profile` needs these options"
        return Check(name, "error", f"{text}. It is too old: {' '.join(profiler.refused)}", why, newer, purpose)
    if profiler.left_out:
        why = "; ".join(_LOST.get(option, f"{option} is left out") for option in profiler.left_out)
        return Check(name, "warning", f"{text}. It does not know {', '.join(profiler.left_out)}", why, newer)
    return Check(name, "ok", text)


def _failed(name: str, trial: Trial | None, tool: str, blocks: tuple[Purpose, ...]) -> list[Check]:
    """What went wrong, and the fix, in the words of the diagnosis that decided; nothing where it was not tried."""
    if trial is None:
        return []
    text = trial.problem or f"{tool} ended without a recording of the kernel"
    if trial.kernels == 0:
        text = f"{tool} wrote a recording without the kernel in it"
    fix = f"{tool} --version; nvidia-smi  (does this version of {tool} fit the driver?)"
    if trial.diagnoses:
        first = next((d for d in trial.diagnoses if d["severity"] == "error"), trial.diagnoses[0])
        text, fix = first["message"], first["fix"].replace(TEXTS["ask_doctor"], "").strip()
    return [Check(name, "error", text, "a run of `llm-perf profile` would end the same way", fix, blocks)]

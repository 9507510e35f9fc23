"""From facts to what the doctor says."""

from __future__ import annotations

from attrs import define

from llm_perf_opt.doctor import counters, gpu, profilers, surroundings
from llm_perf_opt.doctor.facts import Facts
from llm_perf_opt.doctor.model import Check, Readiness, readiness

# In the order in which one would ask: what nothing works without comes first.
_CHECKS = (
    gpu.check_gpu,
    gpu.check_visible,
    gpu.check_capability,
    gpu.check_kernel,
    gpu.check_use,
    profilers.check_nsys,
    profilers.check_importer,
    profilers.check_timeline,
    profilers.check_sampling,
    profilers.check_ncu,
    counters.check_permission,
    profilers.check_counters,
    counters.check_others,
    counters.check_variables,
    counters.check_lock_file,
    counters.check_config_files,
    surroundings.check_packages,
    surroundings.check_models,
    surroundings.check_folders,
    surroundings.check_limits,
    surroundings.check_secrets,
)


@define(frozen=True)
class Examination:
    checks: list[Check]
    ready: Readiness


def examine(facts: Facts) -> Examination:
    """All checks, and what would work."""
    checks = [check for judge in _CHECKS for check in judge(facts)]
    tried = {"nsys", "ncu"} <= {trial.under for trial in facts.trials}
    return Examination(checks, readiness(checks, tried=tried))

"""From facts to what the doctor says."""

from __future__ import annotations

from attrs import define

from llm_perf_opt.doctor import counter_access, gpu, profilers, surroundings
from llm_perf_opt.doctor.checks import Check, Readiness, readiness
from llm_perf_opt.doctor.machine_facts import Facts

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
    counter_access.check_permission,
    profilers.check_counters,
    counter_access.check_others,
    counter_access.check_variables,
    counter_access.check_lock_file,
    counter_access.check_config_files,
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
    checks = [check for evaluate in _CHECKS for check in evaluate(facts)]
    tried = {"nsys", "ncu"} <= {trial.under for trial in facts.trials}
    return Examination(checks, readiness(checks, tried=tried))

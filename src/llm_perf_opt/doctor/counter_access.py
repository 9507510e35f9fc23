"""May counters be read, and does anybody else hold them?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llm_perf_opt.doctor.checks import COUNTERS, Check
from llm_perf_opt.doctor.gpu import devices, has_gpu
from llm_perf_opt.doctor.known import known, program_called
from llm_perf_opt.doctor.machine_facts import Facts
from llm_perf_opt.doctor.profilers import failure_codes, worked

_SYS_ADMIN, _PERFMON = 1 << 21, 1 << 38
_PERFMON_DRIVER = 565  # the first driver for which CAP_PERFMON is enough
_ALLOW_ALL = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)


def check_permission(facts: Facts) -> list[Check]:
    """The driver's rule about counters, and whether this process is above it."""
    name = "permission for counters"
    if worked(facts, "ncu"):
        return [Check(name, "ok", f"ncu read them; {_rule(facts)}")]
    if "COUNTER_PERMISSION" in failure_codes(facts, "ncu"):
        return [_refused(name, "ncu was refused", facts)]
    if not has_gpu(facts):
        return []
    restricted = admin_only(facts)
    if restricted and not _privileged(facts):
        return [_refused(name, _rule(facts), facts)]
    if restricted is None and not _privileged(facts):
        text = f"not known: {_rule(facts)}, and this is neither root nor a process with CAP_SYS_ADMIN"
        why = "most drivers let only administrators read counters"
        return [Check(name, "warning", text, why, "llm-perf doctor  (without --no-try)")]
    return [Check(name, "ok", _rule(facts))]


def admin_only(facts: Facts) -> bool | None:
    """Whether the driver keeps counters to administrators. Drivers publish it under one of two names."""
    found = re.search(
        r"^(?:RmProfilingAdminOnly|RestrictProfilingToAdminUsers):\s*(\d+)", facts.gpu.driver_params or "", re.MULTILINE
    )
    return None if found is None else found[1] != "0"


def check_others(facts: Facts) -> list[Check]:
    """Programs that hold the counters."""
    name = "other profilers"
    taken = "DRIVER_RESOURCE_BUSY" in failure_codes(facts, "ncu")
    why = "only one tool at a time can use the GPU's counters"
    if not facts.processes:
        if not taken:
            return [Check(name, "ok", "none is running")]
        text = "another tool uses the counters and cannot be seen from here"
        fix = "dcgmi profile --pause  (on the host, if this is a container; --resume afterwards)"
        return [Check(name, "error", text, why, fix, COUNTERS)]
    named, stops = [], []
    for process in facts.processes:
        program = program_called(process.name)
        what = program.what if program else "unknown"
        named.append(f"{process.name} ({what}, process {process.pid}, {process.user or 'unknown user'})")
        stops.append((program.stop if program else "kill PID").replace("PID", str(process.pid)))
    text, fix = "; ".join(named), "; ".join(dict.fromkeys(stops))
    if taken:
        return [Check(name, "error", f"the counters are taken; running: {text}", why, fix, COUNTERS)]
    if worked(facts, "ncu"):
        return [Check(name, "ok", f"{text}: running, but ncu got its counters")]
    return [Check(name, "warning", f"running: {text}", why, fix)]


def check_variables(facts: Facts) -> list[Check]:
    """Variables that put other people's code into the program or change what is measured."""
    return [
        Check(variable.name, "warning", f"{variable.name}={value}", variable.why, variable.fix)
        for variable in known().variables
        if (value := facts.variables.get(variable.name)) is not None and value not in variable.harmless
    ]


def check_lock_file(facts: Facts) -> list[Check]:
    """ncu's lock file, which it leaves to the next user."""
    lock = facts.lock_file
    if lock is None or (lock.writable or worked(facts, "ncu")):
        return []
    text = f"{lock.path} belongs to {lock.owner} and cannot be written"
    why = "ncu opens it before it starts, and fails"
    fix = 'mkdir -p "$HOME/.ncu-tmp"; export TMPDIR="$HOME/.ncu-tmp"'
    return [Check("lock file of ncu", "error", text, why, fix, COUNTERS)]


def check_config_files(facts: Facts) -> Iterator[Check]:
    """Settings that profilers read by themselves."""
    for file in facts.config_files:
        tool = "ncu" if file.path.endswith(".ncu-cfg") else "nsys"
        if not file.lines:
            yield Check(f"settings of {tool}", "ok", f"{file.path} sets nothing")
            continue
        text = f"{file.path} sets: {' | '.join(file.lines)}"
        why = f"{tool} reads it in every run here, although no command line shows it: filters and metrics may differ from those requested"
        fix = f"mv '{file.path}' '{file.path}.off'" + ("  (or give ncu --config-file off)" if tool == "ncu" else "")
        yield Check(f"settings of {tool}", "warning", text, why, fix)


def _privileged(facts: Facts) -> bool:
    """Root without the capability, as in most containers, is not enough."""
    capabilities = facts.privileges.capabilities
    driver = next((int(d.driver.split(".")[0]) for d in devices(facts) if d.driver[:1].isdigit()), 0)
    return bool(capabilities & _SYS_ADMIN or (capabilities & _PERFMON and driver >= _PERFMON_DRIVER))


def _rule(facts: Facts) -> str:
    restricted = admin_only(facts)
    if restricted is None:
        return "the driver's rule is not published here (/proc/driver/nvidia/params)"
    if not restricted:
        return "the driver lets everybody read them"
    who = "root" if facts.privileges.root else "not root"
    where = ", in a container" if facts.privileges.container else ""
    privilege = "with" if _privileged(facts) else "without"
    return f"the driver lets only administrators read them, and this is {who}{where}, {privilege} the capability"


def _refused(name: str, found: str, facts: Facts) -> Check:
    why = "ncu stops with ERR_NVGPUCTRPERM; timelines work without it"
    text = found if found == _rule(facts) else f"{found}; {_rule(facts)}"
    return Check(name, "missing", text, why, _allow(facts), COUNTERS)


def _allow(facts: Facts) -> str:
    if facts.gpu.wsl:
        return "In Windows: NVIDIA Control Panel, Developer, Manage GPU Performance Counters, allow access to all users"
    if facts.privileges.container:
        return f"docker run --gpus all --cap-add SYS_ADMIN …  (in Kubernetes: securityContext.capabilities.add); or on the host: {_ALLOW_ALL}, and reboot"
    dracut = re.search(r"\b(?:rhel|fedora|centos|suse)\b", facts.system)
    rebuild = "sudo dracut --force" if dracut else "sudo update-initramfs -u"
    return f'{_ALLOW_ALL} && {rebuild} && sudo reboot  (or run as root: sudo -E env "PATH=$PATH" llm-perf …)'

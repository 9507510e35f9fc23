"""Finds out the facts: asks nvidia-smi, the profilers and Python, and looks into /proc and the folders used.

Nothing is evaluated here and nothing raises: what cannot be found out is left as "not known".
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from llm_perf_opt.doctor import system_facts, trial
from llm_perf_opt.doctor.machine_facts import Facts, Gpu, Importer, Profiler, Trial
from llm_perf_opt.doctor.probe import answered, ask, read_number, read_text, shortened
from llm_perf_opt.doctor.python_packages import find_packages, find_torch
from llm_perf_opt.errors import MissingTool
from llm_perf_opt.nsight import tools
from llm_perf_opt.nsight.help_text import KnownOptions, validate
from llm_perf_opt.nsight.ncu.argv import DEFAULT_METRICS, NcuOptions, ncu_arguments, without_unknown_defaults
from llm_perf_opt.nsight.nsys.argv import nsys_arguments
from llm_perf_opt.nsight.nsys.gpu_metrics import cannot_sample
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.readers.ncu_module import NCU_VARIABLE, installed_ncu
from llm_perf_opt.readers.nsys_tool import installed_nsys
from llm_perf_opt.rundir.secrets import is_secret
from llm_perf_opt.version import __version__

_GPU_FIELDS = (
    "index,name,uuid,driver_version,compute_cap,memory.total,memory.used,utilization.gpu,mig.mode.current,compute_mode",
    "index,name,uuid,driver_version,memory.total,memory.used,compute_mode",  # what drivers before 510 know
)
ReportProgress = Callable[[str], None]


def gather(*, try_it: bool = True, out: Path | None = None, report_progress: ReportProgress = lambda _: None) -> Facts:
    """All facts of this machine. `out`: the folder runs will be written to. `report_progress`: called before anything slow."""
    facts = Facts(
        llm_perf_opt=__version__,
        python=platform.python_version(),
        system=system_facts.describe_system(),
        gpu=_gpu(),
        privileges=system_facts.find_privileges(),
        processes=list(system_facts.find_processes()),
        variables=system_facts.find_variables(os.environ),
        secret_variables=sorted(name for name, value in os.environ.items() if value and is_secret(name, value)),
        config_files=list(system_facts.find_config_files()),
        lock_file=system_facts.find_lock_file(),
        folders=list(system_facts.find_folders(out or Path())),
        perf_event_paranoid=read_number("/proc/sys/kernel/perf_event_paranoid"),
        ptrace_scope=read_number("/proc/sys/kernel/yama/ptrace_scope"),
        open_files=system_facts.limit_of_open_files(),
        try_asked=try_it,
    )
    facts.ncu, ncu, ncu_options = _profiler("ncu")
    facts.nsys, nsys, _ = _profiler("nsys")
    facts.importer = _importer(nsys)
    report_progress("asking Python about its packages …")
    facts.packages = find_packages()
    facts.torch = find_torch()
    if try_it and (facts.gpu.device_nodes or answered(facts.gpu.query)):
        facts.trials = list(_trials(nsys, ncu, ncu_options, report_progress))
    return facts


def _trials(
    nsys: Tool | None, ncu: Tool | None, ncu_options: KnownOptions, report_progress: ReportProgress
) -> Iterator[Trial]:
    report_progress("running a small kernel …")
    undisturbed = _attempt("", trial.try_undisturbed)
    yield undisturbed
    if undisturbed.status != "captured":
        return
    if nsys is not None:
        report_progress("running it under nsys …")
        yield _attempt("nsys", lambda: trial.try_timeline(nsys))
    if ncu is not None:
        report_progress("running it under ncu …")
        yield _attempt("ncu", lambda: trial.try_counters(ncu, ncu_options))


def _attempt(under: str, attempt: Callable[[], Trial]) -> Trial:
    try:
        return attempt()
    except OSError as error:  # the temporary folder is full or not ours
        return Trial(under, "nothing", problem=f"{error.strerror or error}: {error.filename or 'temporary folder'}")


def _gpu() -> Gpu:
    gpu = Gpu(
        device_nodes=sorted(str(p) for p in Path("/dev").glob("nvidia*") if not p.is_dir()),
        driver_params=read_text("/proc/driver/nvidia/params"),
        wsl="microsoft" in (read_text("/proc/version") or "").lower(),
    )
    # WSL keeps it outside PATH of some shells.
    smi = shutil.which("nvidia-smi") or shutil.which("/usr/lib/wsl/lib/nvidia-smi")
    if smi is None:
        return gpu
    for fields in _GPU_FIELDS:
        gpu.query_fields = fields.split(",")
        gpu.query = ask([smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
        if "not a valid field" not in gpu.query.output + gpu.query.errors:
            break
    if answered(gpu.query):
        asked = "--query-compute-apps=pid,process_name,used_memory"
        gpu.processes = ask([smi, asked, "--format=csv,noheader,nounits"])
    return gpu


_TOOLS = {
    "ncu": (tools.find_ncu, installed_ncu, NCU_VARIABLE),
    "nsys": (tools.find_nsys, installed_nsys, tools.NSYS_VARIABLE),
}


def _profiler(name: str) -> tuple[Profiler, Tool | None, KnownOptions]:
    find, installed, variable = _TOOLS[name]
    try:
        tool = find()
    except MissingTool as error:
        named = variable if os.environ.get(variable) else ""
        return Profiler(name, named=named, problem=shortened(error.message)), None, {}
    own = tool.path.resolve()
    profiler = Profiler(
        name,
        path=shortened(tool.path),
        version=tool.version,
        source=tool.source,
        others=sorted({shortened(path) for path in installed() if path.resolve() != own}),
    )
    try:
        options = tools.known_options(tool)
    except MissingTool as error:
        profiler.refused = [error.message]
        return profiler, tool, {}
    if name == "nsys":
        profiler.cannot_sample = cannot_sample(tool)
    ours = NcuOptions(nvtx_push_pop_scope="process")
    needed_options = without_unknown_defaults(NcuOptions(), options)
    if "--nvtx-push-pop-scope" in options:
        needed_options = attrs.evolve(needed_options, nvtx_push_pop_scope="process")
    wanted = _our_arguments(name, ours)
    needed = _our_arguments(name, needed_options if options else ours)
    profiler.left_out = [word for word in wanted if word.startswith("--") and word not in needed]
    profiler.refused = [d.message for d in validate(needed, options, str(tool)) if d.severity == "error"]
    return profiler, tool, options


def _our_arguments(name: str, options: NcuOptions) -> list[str]:
    """Every option that `llm-perf profile` may give."""
    if name == "nsys":
        return nsys_arguments("out", cuda_graph_trace="node")
    return ncu_arguments(
        "out",
        options=options,
        nvtx_expr=["prefill/"],
        metrics=DEFAULT_METRICS,
        filter_mode="per-launch-config",
        kernel_name_base="mangled",
        launch_count=1,
        extra_args=("--log-file", "log"),
    )


def _importer(nsys: Tool | None) -> Importer:
    program = tools.importer_of(nsys.path) if nsys is not None else None
    if nsys is None or program is None:
        return Importer()
    library_path = tools.library_path_for(nsys.path)
    environment = {"LD_LIBRARY_PATH": library_path} if library_path else {}
    libraries = ask(["ldd", str(program)], environment) if shutil.which("ldd") else None
    if libraries is not None:
        # Hundreds of lines of what is there say nothing.
        lines = libraries.output.splitlines()
        libraries.output = "\n".join(dict.fromkeys(line for line in lines if "not found" in line))
    return Importer(shortened(program), libraries)

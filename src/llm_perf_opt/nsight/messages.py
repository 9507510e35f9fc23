"""What nsys and ncu say when something goes wrong, as a table.

The profilers explain themselves in one line among thousands, and often exit 0. Each rule ties such a line
to a cause and to the next thing to type; `outcome` holds the logic that reads the table. Order matters: a
rule that names the cause stands above one that names a consequence, and the first one with an exit code
decides how the run ends.

`seen=False` marks wording taken from manuals and other people's logs (the source is beside the rule);
everything else comes from the transcripts under `tests/transcripts`.
"""

from __future__ import annotations

import re

from attrs import Factory, define, field

from llm_perf_opt.errors import ExitCode


def _compile(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text)


@define(frozen=True, kw_only=True)
class Rule:
    """One known message: when it applies, what it means, what to do about it.

    `cause` and `fix` are format strings; they may use the named groups of `pattern` and the fields that
    `outcome` adds (`exit`, `signal`, `leftover`, `elsewhere`, `mode`, `names`, `where`).
    """

    code: str
    cause: str
    fix: str
    severity: str = "error"
    exit_code: ExitCode = ExitCode.DONE  # DONE: does not decide how the run ends
    pattern: re.Pattern[str] | None = field(default=None, converter=_compile)  # None: a state without a line
    tool: str = ""  # "nsys" | "ncu" | "" for both
    source: str = "profiler"  # "profiler": its own log only; "workload": the program's lines, wherever they went
    argv: re.Pattern[str] | None = field(default=None, converter=_compile)  # the profiler's options must match
    not_argv: re.Pattern[str] | None = field(default=None, converter=_compile)
    absent: re.Pattern[str] | None = field(default=None, converter=_compile)  # no line of the log may match
    follow: int = 0  # further lines that belong to the evidence
    hides: frozenset[str] = Factory(frozenset)  # codes that are only consequences of this one
    needs_failure: bool = False  # a program may survive it: says something only where the run failed
    mild: bool = False  # only a warning where the run ended with 0 and left a report
    nothing: bool = False  # whatever report lies there, this run has no data in it
    seen: bool = True


_CONSEQUENCES = frozenset(
    {
        "WORKLOAD_FAILED",
        "WORKLOAD_CRASHED",
        "KILLED",
        "NO_KERNELS_PROFILED",
        "PROGRAM_WITHOUT_CUDA",
        "NO_RANGES_PROFILED",
        "KERNEL_NOT_PROFILED",
        "UNKNOWN_ERROR",
    }
)
_NO_KERNELS = frozenset({"NO_KERNELS_PROFILED"})
_FAILED = frozenset({"WORKLOAD_FAILED", "WORKLOAD_CRASHED", "UNKNOWN_ERROR"})
_AFTER_FAILURE = frozenset({"NO_KERNELS_PROFILED", "NO_RANGES_PROFILED", "PROGRAM_WITHOUT_CUDA", "UNKNOWN_ERROR"})
ASK_DOCTOR = "`llm-perf doctor` shows what this machine lacks."
_ASK_RANGES = "List the ranges of a timeline with the exact expression for each: `llm-perf ranges RUN`."

RULES: tuple[Rule, ...] = (
    # --- the machine does not allow it -------------------------------------------------------------------
    Rule(
        # https://github.com/deepseek-ai/DeepGEMM/issues/46: "==ERROR== ERR_NVGPUCTRPERM - The user does not have
        # permission to access NVIDIA GPU Performance Counters on the target device 0. For instructions on …"
        code="COUNTER_PERMISSION",
        tool="ncu",
        pattern=r"==(?:ERROR|WARNING)==.*ERR_NVGPUCTRPERM",
        cause="This user may not read the GPU's performance counters.",
        fix=f"Run as root, or allow it for all: `echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf`, then reboot; in a container add `--cap-add SYS_ADMIN`. {ASK_DOCTOR}",
        exit_code=ExitCode.MISSING_TOOL,
        hides=_CONSEQUENCES,
        seen=False,
    ),
    Rule(
        # https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq: "==ERROR== Profiling failed because a
        # driver resource was unavailable. Ensure that no other tool (like DCGM) is concurrently collecting profiling
        # data."; that DCGM holds a lock of the whole machine: https://github.com/NVIDIA/DCGM/issues/56
        code="DRIVER_RESOURCE_BUSY",
        tool="ncu",
        pattern=r"==(?:ERROR|WARNING)==.*driver resource was unavailable",
        cause="Another tool (DCGM, or another profiler) holds the GPU's performance counters.",
        fix=f"Pause DCGM with `dcgmi profile --pause` (afterwards `--resume`), or stop the other profiler: `ps -e | grep -E 'ncu|nsys|dcgm|nv-hostengine'`. {ASK_DOCTOR}",
        exit_code=ExitCode.MISSING_TOOL,
        hides=_CONSEQUENCES,
        seen=False,
    ),
    Rule(
        # https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq: "==ERROR== Failed to open/create lock
        # file /tmp/nsight-compute-lock. Please check that this process has write permissions on this file."; that ncu
        # leaves the file to the next user: https://github.com/madgraph5/madgraph4gpu/issues/603
        code="LOCK_FILE",
        tool="ncu",
        pattern=r"==ERROR==.*(?:Failed to (?:open/create|create|open) lock file|[Cc]ould not create lock)|InterprocessLockFailed",
        cause="ncu cannot open its lock file, which another user left in the shared temporary folder.",
        fix='Give ncu a folder of your own: `mkdir -p "$HOME/.ncu-tmp"; export TMPDIR="$HOME/.ncu-tmp"`, and run again.',
        exit_code=ExitCode.MISSING_TOOL,
        hides=_CONSEQUENCES,
        seen=False,
    ),
    Rule(
        # github.com search, logs of ncu 2025/2026: "==ERROR== Cuda driver is not compatible with Nsight Compute.",
        # "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. Check that a compatible driver library is
        # loaded."; some of those runs have counters all the same
        code="DRIVER_MISMATCH",
        tool="ncu",
        pattern=r"==(?:ERROR|WARNING)==.*(?:driver is not compatible with Nsight Compute|LibraryNotLoaded|Failed to load Nsight Compute CUDA modules)",
        cause="This ncu does not fit the installed driver.",
        fix=f"Compare `nvidia-smi` with `ncu --version` and install the ncu of the driver's CUDA version. {ASK_DOCTOR}",
        exit_code=ExitCode.MISSING_TOOL,
        hides=_CONSEQUENCES,
        mild=True,
        seen=False,
    ),
    Rule(
        # github.com search, a log of ncu on a MIG slice: "==ERROR== Cannot lock GPU clock frequencies on MIG! Try
        # locking the clocks externally (…) or profile without fixed frequencies (see '--clock-control')."
        code="CLOCKS_NOT_LOCKABLE",
        tool="ncu",
        pattern=r"==ERROR==.*Cannot lock GPU clock",
        cause="ncu may not lock the clocks of this GPU.",
        fix="Profile with unlocked clocks: `--clock-control none`.",
        exit_code=ExitCode.MISSING_TOOL,
        hides=_CONSEQUENCES,
        seen=False,
    ),
    Rule(
        # wording of torch and of the CUDA runtime
        code="GPU_MISSING",
        source="workload",
        pattern=r"No CUDA GPUs are available|Found no NVIDIA driver on your system|no CUDA-capable device is detected|CUDA driver version is insufficient|Torch not compiled with CUDA enabled",
        cause="The program found no GPU that it can use.",
        fix=f"Check `nvidia-smi` and CUDA_VISIBLE_DEVICES. {ASK_DOCTOR}",
        exit_code=ExitCode.MISSING_TOOL,
        hides=_CONSEQUENCES,
        needs_failure=True,
        seen=False,
    ),
    # --- the command line --------------------------------------------------------------------------------
    Rule(
        code="UNKNOWN_OPTION",
        pattern=r"^(?:==ERROR== )?unrecogni[sz]ed option '(?P<option>[^']*)'",
        cause="This version of the profiler does not know the option {option}.",
        fix="Look it up in the profiler's `--help` and correct `extra_args` or the option you gave.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="BAD_OPTION_VALUE",
        tool="ncu",
        pattern=r"^==ERROR== the argument(?: \('.*'\))? for option '(?P<option>[^']*)' is invalid",
        cause="The value given to {option} is not one that ncu knows.",
        fix="The values are in `ncu --help`; for `--replay-mode`: kernel, application, range, app-range.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="BAD_OPTION_VALUE",
        tool="nsys",
        pattern=r"^Illegal (?P<option>--[\w-]+) argument '(?P<value>[^']*)'",
        cause="nsys does not know the value '{value}' of {option}.",
        fix="Correct it: the values nsys knows are in `nsys profile --help`; `-t cuda,nvtx` is enough for a timeline.",
        exit_code=ExitCode.BAD_INPUT,
        follow=2,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="UNKNOWN_SECTION",
        tool="ncu",
        pattern=r"^==ERROR== Option '--(?P<option>section|set|rule)\S* (?P<value>.*)' did not match any",
        cause="This ncu has no {option} called {value}.",
        fix="Choose one from `ncu --list-{option}s`; a pattern needs the prefix `regex:`.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="NO_METRICS",
        tool="ncu",
        pattern=r"^==WARNING== No metrics to collect found in sections",
        not_argv=r"(?:^| )--metrics[ =]",
        cause="ncu found no metric to collect (a set or section name that does not exist is only a warning to it), so the report has launches and no counters.",
        fix="Choose a set from `ncu --list-sets` (basic, detailed, full, roofline, …) or name metrics with `--metrics`.",
        exit_code=ExitCode.BAD_INPUT,
        nothing=True,
    ),
    Rule(
        # older ncu, from a log on github.com: "==ERROR== Failed to find metric regex:^flop_count_sp\.(sum|…)$"
        code="UNKNOWN_METRIC",
        tool="ncu",
        pattern=r"^==ERROR== Failed to find metric (?P<metric>\S+)",
        cause="This GPU or this ncu has no metric {metric}.",
        fix="Take the name from `ncu --query-metrics`: names differ from chip to chip.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        seen=False,
    ),
    Rule(
        code="SASS_IN_RANGE",
        tool="ncu",
        pattern=r"==ERROR== Metric (?P<metric>\S+) is not supported in range replay",
        cause="Replay mode {mode} cannot take the metric {metric}.",
        fix="Leave the `*__sass_*` metrics out, or take them with `--replay-mode kernel`.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="PROGRAM_NOT_FOUND",
        tool="ncu",
        pattern=r"^==ERROR== '(?P<program>.*)' does not exist or is not an executable",
        cause="There is no program called {program}.",
        fix="Give its full path, or check the spelling: everything after `--` is run as it stands.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="PROGRAM_NOT_FOUND",
        tool="nsys",
        pattern=r"^Executable '(?P<program>.*)' not found",
        cause="There is no program called {program}.",
        fix="Give its full path, or check the spelling: everything after `--` is run as it stands.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        # https://github.com/madgraph5/madgraph4gpu/issues/750: "==ERROR== Failed to parse options: filesystem error:
        # status: Permission denied [/…/config.ncu-cfg]"
        code="CONFIG_FILE",
        tool="ncu",
        pattern=r"^==ERROR== Failed to parse options",
        cause="ncu cannot read its configuration file or an option in it.",
        fix="Run ncu without it: `--config-file off`.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
        seen=False,
    ),
    # --- writing the report ------------------------------------------------------------------------------
    Rule(
        code="DISK_FULL",
        tool="ncu",
        pattern=r"^==ERROR== Failed to save the report to file (?P<path>.*)",
        cause="ncu could not save results to {path}: the disk is full or the folder went away.",
        fix="Free space or choose another folder (`df -h`), and make the report smaller: `--import-sass no`, fewer kernels or metrics.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_CONSEQUENCES,
    ),
    Rule(
        code="DISK_FULL",
        source="workload",  # the system's own wording: it may come from either
        pattern=r"No space left on device|Disk quota exceeded",
        cause="The disk is full.",
        fix="Free space or choose another folder (`df -h . /tmp`); without `-s none` a small program can write gigabytes of samples.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_CONSEQUENCES | {"IMPORT_FAILED", "OUTPUT_NOT_WRITABLE"},
        needs_failure=True,
    ),
    Rule(
        code="FILE_EXISTS",
        tool="ncu",
        pattern=r"^==ERROR== File (?P<path>.*) already exists",
        cause="{path} is already there and ncu does not overwrite it.",
        fix="Choose another output name, or overwrite with `-f`.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES | {"REPORT_EMPTY"},
        nothing=True,
    ),
    Rule(
        code="FILE_EXISTS",
        tool="nsys",
        pattern=r"^Failed to create '(?P<path>.*)': File exists",
        cause="{path} is already there and nsys does not overwrite it.",
        fix="Choose another output name, or add `--force-overwrite true`.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES | {"REPORT_EMPTY"},
        nothing=True,
    ),
    Rule(
        code="OUTPUT_NOT_WRITABLE",
        tool="ncu",
        pattern=r"^==ERROR== Unable to write to file (?P<path>.*?)\. Please verify",
        cause="ncu cannot write {path}: the folder does not exist or is not yours.",
        fix="Create the folder (`mkdir -p FOLDER`) or choose one you may write to.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="OUTPUT_NOT_WRITABLE",
        tool="nsys",
        pattern=r"^Failed to create '(?P<path>.*)': (?:No such file or directory|Permission denied|Read-only file system|Not a directory)",
        cause="nsys cannot write {path}: the folder does not exist or is not yours.",
        fix="Create the folder (`mkdir -p FOLDER`) or choose one you may write to.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        code="EXPORT_FAILED",
        tool="nsys",
        pattern=r"^Exportation error: ",
        cause="nsys cannot read the report: the file is damaged, incomplete, or of a newer nsys.",
        fix="Record again; where the file came from another machine, check its size and use an nsys at least as new.",
        exit_code=ExitCode.BAD_INPUT,
        hides=_CONSEQUENCES,
        nothing=True,
    ),
    Rule(
        # "An unknown error occurred" is what missing libdw.so.1 looks like; "The importer binary and its dependencies
        # were not found" is nsys 2022 (github.com search, several logs)
        code="IMPORTER_MISSING",
        tool="nsys",
        pattern=r"^Importer error status: (?:An unknown error occurred|The importer binary and its dependencies were not found)|libdw\.so|libelf\.so",
        cause="nsys recorded the program but its importer does not start (usually libdw.so.1 or libelf.so.1 is missing), so only the raw stream is left{leftover}.",
        fix=f"Install the libraries (`apt-get install libdw1 libelf1`), then import what was recorded with `QdstrmImporter -i FILE.qdstrm` (folder host-linux-x64 of nsys), or run again. {ASK_DOCTOR}",
        exit_code=ExitCode.MISSING_TOOL,
        hides=_FAILED | {"IMPORT_FAILED"},
        needs_failure=True,
    ),
    Rule(
        code="IMPORT_FAILED",
        tool="nsys",
        pattern=r"^Importer error status: |^Import Failed with unexpected exception",
        cause="nsys recorded the program but could not turn the stream into a report{leftover}.",
        fix="Import it with a newer nsys (`QdstrmImporter -i FILE.qdstrm`), or record less: `-s none --cpuctxsw none -t cuda,nvtx`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_FAILED,
    ),
    # --- range replay ------------------------------------------------------------------------------------
    Rule(
        code="UNSUPPORTED_API_IN_RANGE",
        tool="ncu",
        pattern=r"==ERROR== Unsupported API during capture \((?P<api>[^)]*)\)",
        cause="The range calls {api}, which range replay cannot record.",
        fix="Use `--replay-mode app-range`, or `kernel`; or warm the model up before the range, so that libraries and kernels are loaded.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_CONSEQUENCES | {"RANGE_INVALID"},
    ),
    Rule(
        code="RANGE_INVALID",
        tool="ncu",
        pattern=r"==ERROR== Skipping invalid capture range \((?P<status>[^)]*)\)",
        cause="ncu could not record the range ({status}).",
        fix="Use `--replay-mode app-range`, or `kernel`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_CONSEQUENCES,
    ),
    # --- the program -------------------------------------------------------------------------------------
    Rule(
        code="GPU_OUT_OF_MEMORY",
        source="workload",
        pattern=r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED",
        cause="The program ran out of GPU memory.",
        fix="Make the batch or the sequence smaller, or free the GPU (`nvidia-smi`); kernel replay needs memory of its own to restore what kernels overwrite: `--replay-mode application` needs none.",
        exit_code=ExitCode.WORKLOAD_FAILED,
        hides=_FAILED | {"KILLED"},
        needs_failure=True,
    ),
    Rule(
        # "bad allocation" next to "Backing up device memory in system memory" (github.com search, a log of ncu)
        code="HOST_OUT_OF_MEMORY",
        source="workload",
        pattern=r"^MemoryError\b|std::bad_alloc|Unhandled C\+\+ exception: bad allocation|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory",
        cause="The machine ran out of main memory.",
        fix="Use a smaller model or batch, or more memory; kernel replay saves GPU memory to the host: `--replay-mode application` does not.",
        exit_code=ExitCode.WORKLOAD_FAILED,
        hides=_FAILED | {"KILLED"},
        needs_failure=True,
        seen=False,
    ),
    Rule(
        # logs of ncu on github.com: '==ERROR== Failed to profile "NAME" in process 7508'
        code="KERNEL_NOT_PROFILED",
        tool="ncu",
        pattern=r"==ERROR== Failed to (?:profile|prepare) \"?(?P<kernel>[^\"]*)",
        cause="ncu gave up on a kernel.",
        fix="Leave it out (`--kernel-name-base demangled -k 'regex:^(?!…)'`), or take fewer metrics at once.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_CONSEQUENCES,
        seen=False,
    ),
    Rule(
        code="WORKLOAD_FAILED",
        tool="ncu",
        pattern=r"==ERROR== The application returned an error code \((?P<exit>[0-9]+)\)",
        cause="The program itself ended with error code {exit}.",
        fix="Run it without the profiler first and make it end with 0; what was captured before is kept.",
        exit_code=ExitCode.WORKLOAD_FAILED,
        hides=_AFTER_FAILURE,
    ),
    # --- nothing matched ---------------------------------------------------------------------------------
    Rule(
        code="PROGRAM_WITHOUT_CUDA",
        tool="ncu",
        pattern=r"^==(?:WARNING|ERROR)== No kernels were profiled",
        absent=r"==PROF== Connected to process",
        cause="The program never used CUDA, so there was nothing to profile.",
        fix="Check that it runs on the GPU (`device=cuda:0`); where it starts others, profile them too: `--target-processes all`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_NO_KERNELS,
    ),
    Rule(
        code="ONLY_START_END_RANGES",
        tool="ncu",
        pattern=r"NVTX include expressions match only start/end ranges",
        cause="An NVTX expression without a trailing slash selects start/end ranges only, and no kernel ran in one.",
        fix=f"For push/pop ranges (torch.cuda.nvtx.range, nvtx.annotate) end it with a slash: `--nvtx-include 'NAME/'`. {_ASK_RANGES}",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_NO_KERNELS | {"NO_RANGES_PROFILED"},
        nothing=True,
    ),
    Rule(
        code="ONLY_PUSH_POP_RANGES",
        tool="ncu",
        pattern=r"NVTX include expressions match only push/pop ranges",
        cause="No kernel ran inside a push/pop range with this name, domain and nesting.",
        fix=f"Check the spelling and the domain (`DOMAIN@NAME/`; a literal @ in a name is written \\@); for work of other threads (backward) add `--nvtx-push-pop-scope process`. {_ASK_RANGES}",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=_NO_KERNELS | {"NO_RANGES_PROFILED"},
        nothing=True,
    ),
    Rule(
        code="NO_SUCH_KERNEL",
        tool="ncu",
        pattern=r"^Available Kernels:",
        cause="No kernel has the name asked for; the program's kernels are listed.",
        fix="`-k` takes the whole name unless it begins with `regex:`: `-k 'regex:gemm'`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        follow=5,
        hides=_NO_KERNELS,
        nothing=True,
    ),
    Rule(
        # logs of ncu 2025 on github.com: "==WARNING== No ranges were profiled."
        code="NO_RANGES_PROFILED",
        tool="ncu",
        pattern=r"^==(?:WARNING|ERROR)== No ranges were profiled",
        cause="No range that the filter selects was opened and closed, so ncu profiled nothing and said so only in a warning.",
        fix=f"Check the expression (a push/pop range ends with a slash: `NAME/`) and that the range holds GPU work. {_ASK_RANGES}",
        exit_code=ExitCode.NOTHING_CAPTURED,
        nothing=True,
        seen=False,
    ),
    Rule(
        code="NO_KERNELS_PROFILED",
        tool="ncu",
        pattern=r"^==(?:WARNING|ERROR)== No kernels were profiled",
        cause="No launch passed the filters, so ncu profiled nothing and said so only in a warning.",
        fix=f"Loosen the filters one at a time (`--nvtx-include`, `-k`, `--launch-skip`, `--profile-from-start off` without cudaProfilerStart). {_ASK_RANGES}",
        exit_code=ExitCode.NOTHING_CAPTURED,
        nothing=True,
    ),
    Rule(
        code="CAPTURE_RANGE_NEVER_OPENED",
        tool="nsys",
        pattern=r"No reports were generated",
        argv=r"(?:^| )(?:-c ?|--capture-range[ =])nvtx(?: |$)",
        cause="The NVTX range that was to start the recording never opened.",
        fix="nsys writes NAME@DOMAIN (`-p 'prefill@*'`), and Python's names need `-e NSYS_NVTX_PROFILER_REGISTER_ONLY=0`; or record without `-c`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=frozenset({"NO_REPORT"}),
        nothing=True,
    ),
    Rule(
        code="CAPTURE_RANGE_NEVER_OPENED",
        tool="nsys",
        pattern=r"No reports were generated",
        argv=r"(?:^| )(?:-c ?|--capture-range[ =])(?!none)",
        cause="The program never opened the capture range, so nsys recorded nothing and exited as if all were well.",
        fix="Call torch.cuda.profiler.start() and stop() around the part to record, or record without `-c`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        hides=frozenset({"NO_REPORT"}),
        nothing=True,
    ),
    Rule(
        code="NO_REPORT",
        tool="nsys",
        pattern=r"No reports were generated",
        cause="nsys made no report.",
        fix="Look at the log above that line; record with `-s none --cpuctxsw none -t cuda,nvtx`.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        nothing=True,
    ),
    # --- worth knowing, stops nothing --------------------------------------------------------------------
    Rule(
        code="ANOTHER_PROFILER",
        source="workload",
        pattern=r"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        severity="warning",
        cause="The program starts a profiler of its own (torch.profiler), and only one may use CUPTI: the one inside sees no GPU work.",
        fix="Switch torch.profiler off in the program while nsys or ncu profiles it.",
    ),
    Rule(
        code="METRICS_DROPPED",
        tool="ncu",
        pattern=r"==(?:WARNING|ERROR)== (?:Unable|Failed) to access the following (?P<count>[0-9]+) metrics?: (?P<names>.*)",
        severity="warning",
        cause="This GPU does not have {count} of the metrics asked for; the others were taken.",
        fix="Nothing to do unless you need them: `ncu --query-metrics` lists what this GPU has.",
    ),
    Rule(
        code="NO_METRICS_IN_SECTIONS",
        tool="ncu",
        pattern=r"^==WARNING== No metrics to collect found in sections",
        argv=r"(?:^| )--metrics[ =]",
        severity="warning",
        cause="The set or section asked for has no metrics or does not exist; only those named with `--metrics` were taken.",
        fix="Choose a set from `ncu --list-sets` or a section from `ncu --list-sections`.",
    ),
    Rule(
        # logs of ncu on github.com, large models: runs of hours, or "bad allocation" later
        code="REPLAY_SLOW",
        tool="ncu",
        pattern=r"==WARNING== Backing up device memory in system memory",
        severity="warning",
        cause="The GPU's memory is too full for ncu to save its contents there, so every pass copies them to the host and back.",
        fix="Use a smaller batch, fewer passes, or `--replay-mode application`.",
        seen=False,
    ),
    # --- anything else -----------------------------------------------------------------------------------
    Rule(
        code="UNKNOWN_ERROR",
        tool="ncu",
        # headers and references are no causes; what follows or precedes them is
        pattern=r"==ERROR== (?!See |Use |Refer |For more information|An error (?:was reported|occurred))\S",
        cause="ncu reported an error this project does not know.",
        fix="Read the lines around it in the log.",
        exit_code=ExitCode.NOTHING_CAPTURED,
        mild=True,
        seen=False,
    ),
)

STATES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        Rule(
            code="TIMED_OUT",
            cause="The time given to the run was over and it was stopped.",
            fix="Give it more time (`--timeout`), or profile less: fewer regions (`--include`), fewer metrics, a shorter input.",
            exit_code=ExitCode.TIMED_OUT,
            hides=_CONSEQUENCES,
        ),
        Rule(
            code="RECORDING_TOO_LARGE",
            tool="nsys",
            severity="warning",
            cause="The recording had grown beyond its limit and was ended there: what the program did later is not in it.",
            fix="Profile a shorter run (fewer steps, a shorter input), or raise the limit: `--max-size 8GB`.",
            hides=_CONSEQUENCES,
        ),
        Rule(
            code="INTERRUPTED",
            severity="warning",
            cause="The run was stopped from outside ({signal}).",
            fix="What was captured so far is kept: `llm-perf report RUN`; start again for the rest.",
            exit_code=ExitCode.INTERRUPTED,
            hides=_CONSEQUENCES,
        ),
        Rule(
            code="CAPTURE_RANGE_END_KILLED",
            tool="nsys",
            severity="warning",
            pattern=r"Capture range ended in the application",
            cause="nsys stopped the program when its capture range closed (the default of `--capture-range-end`); the range itself is recorded in full.",
            fix="Let the program finish with `--capture-range-end stop`.",
            hides=_CONSEQUENCES,
        ),
        Rule(
            code="ENDED_ON_PURPOSE",
            severity="info",
            cause="The program was ended on purpose before {where}: all planned samples were in (--stop-when-done).",
            fix="Leave --stop-when-done out to let it run to its end under ncu.",
            hides=frozenset({"WORKLOAD_FAILED", "UNKNOWN_ERROR"}),  # its exit code is ours
        ),
        Rule(
            code="WORKLOAD_FAILED",
            cause="The program itself ended with error code {exit}.",
            fix="Run it without the profiler first and make it end with 0; what was captured before is kept.",
            exit_code=ExitCode.WORKLOAD_FAILED,
            hides=_AFTER_FAILURE,
        ),
        Rule(
            code="WORKLOAD_CRASHED",
            cause="The program crashed ({signal}).",
            fix="Run it without the profiler; where it only crashes with it, try fewer metrics or `--replay-mode application`. What was captured before is kept.",
            exit_code=ExitCode.WORKLOAD_FAILED,
            hides=_AFTER_FAILURE,
        ),
        Rule(
            code="KILLED",
            cause="The program was killed (SIGKILL), as the system does when main memory runs out.",
            fix="Look for it with `dmesg | grep -i 'killed process'`; use a smaller model or batch, or raise the memory limit of the container.",
            exit_code=ExitCode.WORKLOAD_FAILED,
            hides=_AFTER_FAILURE,
            seen=False,
        ),
        Rule(
            code="PROFILER_KILLED",
            cause="The profiler was killed or never ended by itself, and the rest of the recording is lost.",
            fix="Look for the cause with `dmesg | grep -i 'killed process'` (main memory), check that no process is left (`ps -e | grep -E 'ncu|nsys'`), and run again.",
            exit_code=ExitCode.NOTHING_CAPTURED,
        ),
        Rule(
            code="PROFILER_CRASHED",
            cause="The profiler itself crashed ({signal}).",
            fix="Try fewer metrics, or another version of the tool.",
            exit_code=ExitCode.NOTHING_CAPTURED,
            seen=False,
        ),
        Rule(
            code="UNKNOWN_EXIT",
            cause="The profiler ended with code {exit} and no message says why.",
            fix="Read the end of both logs, and run the program without the profiler; what was captured before is kept.",
            exit_code=ExitCode.WORKLOAD_FAILED,
            seen=False,
        ),
        Rule(
            code="REPORT_EMPTY",
            cause="The report file is there but too small to hold anything{leftover}.",
            fix="Delete it and run again; check free space with `df -h`.",
            exit_code=ExitCode.NOTHING_CAPTURED,
            seen=False,
        ),
        Rule(
            code="REPORT_ELSEWHERE",
            severity="info",
            cause="The profiler says that it left its file at {elsewhere}, not where it was expected.",
            fix="Fetch it from there: `mv {elsewhere} .`",
            exit_code=ExitCode.NOTHING_CAPTURED,
        ),
        Rule(
            code="NOTHING_CAPTURED",
            cause="The profiler ended with code {exit} and left no report, and no message that says why.",
            fix="Read its log.",
            exit_code=ExitCode.NOTHING_CAPTURED,
            seen=False,
        ),
        Rule(
            code="METRICS_ABSENT",
            severity="warning",
            cause="Metrics that were asked for are not in the report, and ncu did not say so: {names}.",
            fix="Check the spelling against `ncu --query-metrics`: names differ from chip to chip, and most need a suffix such as `.sum` or `.avg`.",
        ),
        Rule(
            code="REPLAY_FELL_BACK",
            severity="warning",
            cause="Replay mode {mode} gave nothing, so {names} was used instead.",
            fix="Nothing needs to be done; values say which mode they come from.",
        ),
        Rule(
            code="METRICS_LEFT_OUT",
            severity="warning",
            cause="Replay mode {mode} cannot take these metrics, so they were left out: {names}.",
            fix="Take them in a run of their own with `--replay-mode kernel`.",
        ),
    )
}

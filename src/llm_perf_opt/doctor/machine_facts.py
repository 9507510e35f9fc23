"""What is known about a machine, in a form that can be written down as JSON and evaluated again elsewhere.

Nothing here is a verdict. Folders are named by what they are for, the user's own folders are shortened,
and of the environment only those variables have values that decide how CUDA and the profilers behave;
of those that look like secrets there is only the name.
"""

from __future__ import annotations

from attrs import Factory, define

from llm_perf_opt.process.ask import Answer

FORMAT = 1


@define
class Gpu:
    """What the driver says, each part in its own words."""

    query: Answer | None = None  # nvidia-smi --query-gpu; None: there is no nvidia-smi
    query_fields: list[str] = Factory(list)  # the columns asked for
    processes: Answer | None = None  # nvidia-smi --query-compute-apps
    device_nodes: list[str] = Factory(list)  # /dev/nvidia*
    driver_params: str | None = None  # /proc/driver/nvidia/params; None: there is none
    wsl: bool = False


@define
class Profiler:
    """An ncu or nsys, or why there is none."""

    name: str
    path: str | None = None
    version: str | None = None
    source: str = ""  # how it was found
    named: str = ""  # the variable that names one, where it cannot be used
    problem: str = ""  # why none can be used
    others: list[str] = Factory(list)  # further ones that are installed
    left_out: list[str] = Factory(list)  # options of ours that are worth having and that it does not know
    refused: list[str] = Factory(list)  # what of our command line it cannot do without and does not know, in words
    cannot_sample: str | None = (
        None  # of nsys: why it can sample no GPU, empty where it can; None where it was not asked
    )


@define
class Importer:
    """The program that turns nsys's raw stream into a report."""

    path: str | None = None  # None: not found beside nsys
    libraries: Answer | None = None  # ldd


@define
class Privileges:
    """What this process may do."""

    root: bool = False
    capabilities: int = 0  # CapEff of /proc/self/status
    seccomp: int | None = None
    container: str = ""  # what says so; empty: none


@define
class RunningProcess:
    pid: int
    name: str
    user: str


@define
class ConfigFile:
    """A file that a profiler reads by itself."""

    path: str
    lines: list[str]  # what is set in it, without comments and secrets


@define
class LockFile:
    path: str
    owner: str
    writable: bool


@define
class Folder:
    """A place the profilers write to."""

    role: str  # "working folder" | "temporary folder" | "home folder" | "shared memory"
    path: str
    exists: bool = True
    writable: bool = True
    free_bytes: int | None = None


@define
class Package:
    """A Python package."""

    name: str
    version: str | None = None  # None: not installed
    problem: str = ""  # why it does not load


@define
class Torch:
    """What PyTorch says of itself, asked in a process of its own."""

    version: str | None = None  # None: not installed
    cuda: str | None = None  # the CUDA it was built for; None: built without
    sees_gpu: bool = False
    problem: str = ""


@define
class Trial:
    """A small kernel run undisturbed or under a profiler."""

    under: str  # "" | "nsys" | "ncu"
    status: str  # "captured" | "partial" | "nothing"
    seconds: float = 0.0
    timed_out: bool = False
    kernels: int | None = None  # in the recording
    ranges: int | None = None
    counters: dict[str, float] = Factory(dict)  # of the first kernel
    device: str = ""
    problem: str = ""  # in the program's or the reader's words
    diagnoses: list[dict[str, str]] = Factory(list)  # code, severity, message, fix


@define
class Facts:
    """Everything the doctor looks at."""

    format: int = FORMAT
    llm_perf_opt: str = ""
    python: str = ""
    system: str = ""  # /etc/os-release: ID and ID_LIKE
    gpu: Gpu = Factory(Gpu)
    ncu: Profiler = Factory(lambda: Profiler("ncu"))
    nsys: Profiler = Factory(lambda: Profiler("nsys"))
    importer: Importer = Factory(Importer)
    privileges: Privileges = Factory(Privileges)
    processes: list[RunningProcess] = Factory(list)  # only those that may be in the way
    variables: dict[str, str] = Factory(dict)
    secret_variables: list[str] = Factory(list)  # names
    config_files: list[ConfigFile] = Factory(list)
    lock_file: LockFile | None = None
    folders: list[Folder] = Factory(list)
    packages: list[Package] = Factory(list)
    torch: Torch = Factory(Torch)
    perf_event_paranoid: int | None = None
    ptrace_scope: int | None = None
    open_files: int | None = None  # soft limit; None: no limit
    trials: list[Trial] = Factory(list)
    try_asked: bool = True

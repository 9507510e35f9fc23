"""Finds out the facts: asks nvidia-smi, the profilers and Python, and looks into /proc and the folders used.

Nothing is judged here and nothing raises: what cannot be found out is left as "not known".
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import cattrs

from llm_perf_opt.doctor import trial
from llm_perf_opt.doctor.facts import (
    Answer,
    ConfigFile,
    Facts,
    Folder,
    Gpu,
    Importer,
    LockFile,
    Package,
    Privileges,
    Profiler,
    RunningProcess,
    Torch,
    Trial,
)
from llm_perf_opt.doctor.known import known, program_called
from llm_perf_opt.errors import MissingTool
from llm_perf_opt.nsight.help_text import KnownOptions, validate
from llm_perf_opt.nsight.ncu.argv import DEFAULT_METRICS, NcuOptions, ncu_arguments, without_unknown_defaults
from llm_perf_opt.nsight.nsys.argv import nsys_arguments
from llm_perf_opt.nsight.nsys.gpu_metrics import cannot_sample
from llm_perf_opt.nsight.tools import (
    NCU_VARIABLE,
    NSYS_VARIABLE,
    Tool,
    find_ncu,
    find_nsys,
    importer_of,
    installed_ncu,
    known_options,
    library_path_for,
)
from llm_perf_opt.readers.nsys_tool import installed_nsys
from llm_perf_opt.rundir.secrets import clean_argv, is_secret
from llm_perf_opt.version import __version__

_ANSWER_KEPT = 20_000
_COMMAND_TIMEOUT_S = 30.0
_TORCH_TIMEOUT_S = 120.0
_GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "mig.mode.current",
    "compute_mode",
)
# What drivers before 510 know.
_OLD_GPU_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total", "memory.used", "compute_mode")
_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TMPDIR"),
    *("LLM_PERF_NCU", "LLM_PERF_NSYS", "CUDA_HOME", "CUDA_PATH"),
)
_CONFIG_LINES = 40
_PACKAGES = ("ncu-report", "nvtx", "hydra-core", "transformers")
_MODULES = {"ncu-report": "ncu_report", "nvtx": "nvtx", "hydra-core": "hydra"}  # loaded too; transformers is slow

_ASK_PACKAGES = """
import importlib, importlib.metadata, json, sys
found = []
for name, module in json.loads(sys.argv[1]).items():
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
            version = version or "unknown"
    found.append({"name": name, "version": version, "problem": problem})
print("\\n" + json.dumps(found))
"""
_ASK_TORCH = """
import json
try:
    import torch
except ModuleNotFoundError as error:
    told = {"version": None, "problem": "" if error.name == "torch" else str(error)}
except BaseException as error:
    told = {"version": "unknown", "problem": f"{type(error).__name__}: {error}"}
else:
    told = {"version": torch.__version__, "cuda": torch.version.cuda, "sees_gpu": False, "problem": ""}
    try:
        told["sees_gpu"] = torch.cuda.is_available()
        if told["sees_gpu"]:
            torch.zeros(1, device="cuda")
    except BaseException as error:
        told["problem"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(told))
"""

Say = Callable[[str], None]


def gather(*, try_it: bool = True, out: Path | None = None, say: Say = lambda _: None) -> Facts:
    """All facts of this machine. `out`: the folder runs will be written to. `say`: told before anything slow."""
    facts = Facts(
        llm_perf_opt=__version__,
        python=platform.python_version(),
        system=_system(),
        gpu=_gpu(),
        privileges=_privileges(),
        processes=list(_processes()),
        variables=_variables(os.environ),
        secret_variables=sorted(name for name, value in os.environ.items() if value and is_secret(name, value)),
        config_files=list(_config_files()),
        lock_file=_lock_file(),
        folders=list(_folders(out or Path())),
        perf_event_paranoid=_number("/proc/sys/kernel/perf_event_paranoid"),
        ptrace_scope=_number("/proc/sys/kernel/yama/ptrace_scope"),
        open_files=_open_files(),
        try_asked=try_it,
    )
    facts.ncu, ncu, ncu_options = _profiler("ncu")
    facts.nsys, nsys, _ = _profiler("nsys")
    facts.importer = _importer(nsys)
    say("asking Python about its packages …")
    facts.packages = _packages()
    facts.torch = _torch()
    if try_it and (facts.gpu.device_nodes or _works(facts.gpu.query)):
        facts.trials = list(_trials(nsys, ncu, ncu_options, say))
    return facts


def _trials(nsys: Tool | None, ncu: Tool | None, ncu_options: KnownOptions, say: Say) -> Iterator[Trial]:
    say("running a small kernel …")
    alone = _attempt("", trial.try_alone)
    yield alone
    if alone.status != "captured":
        return
    if nsys is not None:
        say("running it under nsys …")
        yield _attempt("nsys", lambda: trial.try_timeline(nsys))
    if ncu is not None:
        say("running it under ncu …")
        yield _attempt("ncu", lambda: trial.try_counters(ncu, ncu_options))


def _attempt(under: str, attempt: Callable[[], Trial]) -> Trial:
    try:
        return attempt()
    except OSError as error:  # the temporary folder is full or not ours
        return Trial(under, "nothing", problem=f"{error.strerror or error}: {error.filename or 'temporary folder'}")


# -- the GPU ---------------------------------------------------------------------------------------


def _gpu() -> Gpu:
    gpu = Gpu(
        device_nodes=sorted(str(p) for p in Path("/dev").glob("nvidia*") if not p.is_dir()),
        driver_params=_text("/proc/driver/nvidia/params"),
        wsl="microsoft" in (_text("/proc/version") or "").lower(),
    )
    # WSL keeps it outside PATH of some shells.
    smi = shutil.which("nvidia-smi") or shutil.which("/usr/lib/wsl/lib/nvidia-smi")
    if smi is None:
        return gpu
    for fields in (_GPU_FIELDS, _OLD_GPU_FIELDS):
        gpu.query_fields = list(fields)
        gpu.query = ask([smi, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        if "not a valid field" not in gpu.query.output + gpu.query.errors:
            break
    if _works(gpu.query):
        asked = "--query-compute-apps=pid,process_name,used_memory"
        gpu.processes = ask([smi, asked, "--format=csv,noheader,nounits"])
    return gpu


# -- the profilers ---------------------------------------------------------------------------------


def _profiler(name: str) -> tuple[Profiler, Tool | None, KnownOptions]:
    try:
        tool = find_ncu() if name == "ncu" else find_nsys()
    except MissingTool as error:
        variable = NCU_VARIABLE if name == "ncu" else NSYS_VARIABLE
        named = variable if os.environ.get(variable) else ""
        return Profiler(name, named=named, problem=shortened(error.message)), None, {}
    installed = installed_ncu() if name == "ncu" else installed_nsys()
    own = tool.path.resolve()
    profiler = Profiler(
        name,
        path=shortened(tool.path),
        version=tool.version,
        source=tool.source,
        others=sorted({shortened(path) for path in installed if path.resolve() != own}),
    )
    try:
        options = known_options(tool)
    except MissingTool as error:
        profiler.refused = [error.message]
        return profiler, tool, {}
    if name == "nsys":
        profiler.cannot_sample = cannot_sample(tool)
    ours = NcuOptions(nvtx_push_pop_scope="process")
    needed_options = without_unknown_defaults(NcuOptions(), options)
    if "--nvtx-push-pop-scope" in options:
        needed_options = attrs.evolve(needed_options, nvtx_push_pop_scope="process")
    given = _our_arguments(name, ours)
    needed = _our_arguments(name, needed_options if options else ours)
    profiler.left_out = [word for word in given if word.startswith("--") and word not in needed]
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
    program = importer_of(nsys.path) if nsys is not None else None
    if nsys is None or program is None:
        return Importer()
    library_path = library_path_for(nsys.path)
    environment = {"LD_LIBRARY_PATH": library_path} if library_path else {}
    libraries = ask(["ldd", str(program)], environment) if shutil.which("ldd") else None
    if libraries is not None:
        # Hundreds of lines of what is there say nothing.
        lines = libraries.output.splitlines()
        libraries.output = "\n".join(dict.fromkeys(line for line in lines if "not found" in line))
    return Importer(shortened(program), libraries)


# -- what this process may do, and who else is there -----------------------------------------------


def _privileges() -> Privileges:
    status = _text("/proc/self/status") or ""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    seccomp = fields.get("Seccomp", "").strip()
    return Privileges(
        root=os.geteuid() == 0,
        capabilities=int(fields.get("CapEff", "0").strip() or "0", 16),
        seccomp=int(seccomp) if seccomp.isdigit() else None,
        container=_container(),
    )


def _container() -> str:
    for sign in ("/.dockerenv", "/run/.containerenv", "/.singularity.d"):
        if Path(sign).exists():
            return sign
    groups = _text("/proc/1/cgroup") or ""
    found = re.search(r"docker|kubepods|containerd|libpod|lxc", groups)
    if found:
        return f"/proc/1/cgroup: {found[0]}"
    return "KUBERNETES_SERVICE_HOST" if "KUBERNETES_SERVICE_HOST" in os.environ else ""


def _processes() -> Iterator[RunningProcess]:
    """Programs that may hold the counters; our own parents are not in our way."""
    own = set(_ancestors(os.getpid()))
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in own:
            continue
        # The kernel cuts names at 15 characters; the command line has them whole.
        command = (_text(folder / "cmdline") or "").split("\0")[0]
        for name in (Path(command).name, (_text(folder / "comm") or "").strip()):
            if name and program_called(name):
                yield RunningProcess(int(folder.name), name, _owner(folder))
                break


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        stat = _text(f"/proc/{pid}/stat") or ""
        fields = stat.rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0


# -- settings --------------------------------------------------------------------------------------


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    names = (*_VARIABLES, *(variable.name for variable in known().variables))
    return {name: shortened(environment[name]) for name in names if name in environment}


def _config_files() -> Iterator[ConfigFile]:
    """Where ncu and nsys look for settings without being told to."""
    settings = _home() / ".config" / "NVIDIA Corporation"
    for path in (Path("config.ncu-cfg"), settings / "config.ncu-cfg", settings / "nsys-config.ini"):
        content = _text(path)
        if content is not None:
            lines = [line.strip() for line in content.splitlines()]
            told = [line for line in lines if line and not line.startswith(("#", ";"))]
            yield ConfigFile(shortened(path), clean_argv(told[:_CONFIG_LINES]))


def _lock_file() -> LockFile | None:
    path = Path(os.environ.get("TMPDIR") or "/tmp") / "nsight-compute-lock"  # noqa: S108 - ncu's choice, not ours
    try:
        path.lstat()
    except OSError:
        return None
    return LockFile(shortened(path), _owner(path), os.access(path, os.W_OK))


# -- places ----------------------------------------------------------------------------------------


def _folders(out: Path) -> Iterator[Folder]:
    yield _folder("working folder", out)
    yield _folder("temporary folder", Path(os.environ.get("TMPDIR") or tempfile.gettempdir()))
    yield _folder("home folder", _home())
    yield _folder("shared memory", Path("/dev/shm"))  # noqa: S108 - looked at, not used


def _folder(role: str, path: Path) -> Folder:
    # A folder that will be made later is judged by the one it will be made in.
    there = path.absolute()
    while role == "working folder" and not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Folder(role, shortened(path), exists=False, writable=False)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        free = None
    return Folder(role, shortened(path), writable=os.access(there, os.W_OK | os.X_OK), free_bytes=free)


# -- Python ----------------------------------------------------------------------------------------


def _packages() -> list[Package]:
    asked = json.dumps({name: _MODULES.get(name, "") for name in _PACKAGES})
    told = _ask_python(_ASK_PACKAGES, asked, _COMMAND_TIMEOUT_S)
    if isinstance(told, list):
        return cattrs.structure(told, list[Package])
    return [Package(name, problem=f"Python could not be asked: {told}") for name in _PACKAGES]


def _torch() -> Torch:
    told = _ask_python(_ASK_TORCH, "", _TORCH_TIMEOUT_S)
    if isinstance(told, dict):
        return cattrs.structure(told, Torch)
    return Torch("unknown", problem=str(told))


def _ask_python(script: str, argument: str, timeout_s: float) -> object:
    """What a child says in its last line: packages may print, crash or hang while they load."""
    # Not isolated: the packages that programs of this shell would find are the ones to ask about. But nothing is
    # loaded from the working folder (-P), which may be anybody's.
    answer = ask([sys.executable, "-P", "-W", "ignore", "-c", script, argument], timeout_s=timeout_s)
    try:
        return json.loads(answer.output.splitlines()[-1])
    except (ValueError, IndexError):
        lines = [line for line in answer.errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with code {answer.exit_code}"


# -- small things ----------------------------------------------------------------------------------


def ask(argv: list[str], environment: Mapping[str, str] | None = None, timeout_s: float = _COMMAND_TIMEOUT_S) -> Answer:
    """Run a short command."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return Answer(_told(argv), None, errors=f"it did not answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(_told(argv), None, errors=error.strerror or str(error))
    return Answer(_told(argv), done.returncode, done.stdout[-_ANSWER_KEPT:], done.stderr[-_ANSWER_KEPT:])


def _told(argv: list[str]) -> list[str]:
    return [shortened(word) for word in argv]


def shortened(path: str | os.PathLike[str]) -> str:
    """A path without the user's own folders in it."""
    text = os.fspath(path)
    for folder, sign in ((str(Path.cwd()), "."), (str(_home()), "~")):
        if folder != "/":
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?=/|$|:)", sign, text)
    return text


def _home() -> Path:
    """The home folder; `~`, which is not there, for a user without one (containers with a random user id)."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - pathlib raises where there is none


def _works(answer: Answer | None) -> bool:
    return answer is not None and answer.exit_code == 0 and bool(answer.output.strip())


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _number(path: str) -> int | None:
    try:
        return int((_text(path) or "").strip())
    except ValueError:
        return None


def _owner(path: Path) -> str:
    try:
        uid = path.lstat().st_uid
    except OSError:
        return ""
    if uid == os.geteuid():
        return "you"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _system() -> str:
    fields = dict(line.split("=", 1) for line in (_text("/etc/os-release") or "").splitlines() if "=" in line)
    return " ".join(fields.get(name, "").strip('"') for name in ("ID", "VERSION_ID", "ID_LIKE")).strip()


def _open_files() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft

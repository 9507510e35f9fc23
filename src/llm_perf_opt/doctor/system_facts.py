"""What the operating system says: privileges, other programs, settings of the profilers, folders and limits."""

from __future__ import annotations

import os
import pwd
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from llm_perf_opt.doctor.known import known, program_called
from llm_perf_opt.doctor.machine_facts import ConfigFile, Folder, LockFile, Privileges, RunningProcess
from llm_perf_opt.doctor.probe import home, read_text, shortened
from llm_perf_opt.rundir.command_lines import clean_argv

_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TMPDIR"),
    *("LLM_PERF_NCU", "LLM_PERF_NSYS", "CUDA_HOME", "CUDA_PATH"),
)
_CONFIG_LINES = 40


def find_privileges() -> Privileges:
    status = read_text("/proc/self/status") or ""
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
    groups = read_text("/proc/1/cgroup") or ""
    found = re.search(r"docker|kubepods|containerd|libpod|lxc", groups)
    if found:
        return f"/proc/1/cgroup: {found[0]}"
    return "KUBERNETES_SERVICE_HOST" if "KUBERNETES_SERVICE_HOST" in os.environ else ""


def find_processes() -> Iterator[RunningProcess]:
    """Programs that may hold the counters; our own parents are not in our way."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["name", "cmdline"]):
        # The kernel cuts names at 15 characters; the command line has them whole.
        names = (Path(*(process.info["cmdline"] or [""])[:1]).name, process.info["name"] or "")
        name = next((name for name in names if name and program_called(name)), None)
        if name is not None and process.pid not in own:
            yield RunningProcess(process.pid, name, _owner(Path(f"/proc/{process.pid}")))


def find_variables(environment: Mapping[str, str]) -> dict[str, str]:
    names = (*_VARIABLES, *(variable.name for variable in known().variables))
    return {name: shortened(environment[name]) for name in names if name in environment}


def find_config_files() -> Iterator[ConfigFile]:
    """Where ncu and nsys look for settings by themselves."""
    settings = home() / ".config" / "NVIDIA Corporation"
    for path in (Path("config.ncu-cfg"), settings / "config.ncu-cfg", settings / "nsys-config.ini"):
        content = read_text(path)
        if content is not None:
            lines = [line.strip() for line in content.splitlines()]
            set_lines = [line for line in lines if line and not line.startswith(("#", ";"))]
            yield ConfigFile(shortened(path), clean_argv(set_lines[:_CONFIG_LINES], show=True))


def find_lock_file() -> LockFile | None:
    path = Path(os.environ.get("TMPDIR") or "/tmp") / "nsight-compute-lock"  # noqa: S108 - ncu's choice, not ours
    try:
        path.lstat()
    except OSError:
        return None
    return LockFile(shortened(path), _owner(path), os.access(path, os.W_OK))


def find_folders(out: Path) -> Iterator[Folder]:
    yield _folder("working folder", out)
    yield _folder("temporary folder", Path(os.environ.get("TMPDIR") or tempfile.gettempdir()))
    yield _folder("home folder", home())
    yield _folder("shared memory", Path("/dev/shm"))  # noqa: S108 - looked at, not used


def _folder(role: str, path: Path) -> Folder:
    # A folder that will be made later is evaluated by the one it will be made in.
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


def describe_system() -> str:
    fields = dict(line.split("=", 1) for line in (read_text("/etc/os-release") or "").splitlines() if "=" in line)
    return " ".join(fields.get(name, "").strip('"') for name in ("ID", "VERSION_ID", "ID_LIKE")).strip()


def limit_of_open_files() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft

"""Jobs of several ranks on a real Slurm and a real Ray, each of two nodes on this machine, in a folder of their own.

`make cluster` installs Debian's packages and Ray where it may and runs this. Each case submits a job with one llm-perf a
rank and says what came of it: all ranks, one a node, by the submit files of the documentation, by mpirun, a rank that
fails, a rank that is killed, a node that is lost, a shared folder that is full; and sweeps, with a job that fails or is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from cluster_cases import LLM_PERF, RANKS, ROOT, SUBMIT, Case, all_ranks, ended
from ray_cluster import RAY_CASES, ray

RANKS_PROGRAM = ROOT / "benchmarks" / "programs" / "ranks_program.py"
NEEDED = ("munged", "slurmctld", "slurmd", "srun")
CONFIGURATION = """\
ClusterName=llmperf
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={port}
SlurmdTimeout=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster of two nodes; the variables with which it is found. Everything is ended afterwards."""
    ports = {name: free_port() for name in ("port", "first", "second")}
    file = folder / "slurm.conf"
    user = os.environ.get("USER", "root") if os.geteuid() else "root"
    file.write_text(
        CONFIGURATION.format(host=socket.gethostname().partition(".")[0], user=user, folder=folder, **ports)
    )
    (folder / "state").mkdir()
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(file)}
    munge = [f"--{name}-file={folder / name}" for name in ("pid", "log", "seed")]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in (
            ["munged", "--foreground", "--force", f"--socket={folder / 'munge.socket'}", f"--key-file={key}", *munge],
            ["slurmctld", "-D"],
            ["slurmd", "-D", "-N", "node1"],
            ["slurmd", "-D", "-N", "node2"],
        ):
            quiet = subprocess.DEVNULL
            started.append(subprocess.Popen(words, env=environment, stdout=quiet, stderr=quiet))
            time.sleep(1)
        environment["NODE2"] = str(started[-1].pid)
        deadline = time.monotonic() + 30
        while "idle" not in subprocess.run(["sinfo", "-h"], env=environment, capture_output=True, text=True).stdout:
            if time.monotonic() > deadline:
                raise SystemExit(f"Slurm does not come up: see the logs in {folder}")
            time.sleep(0.5)
        yield environment
    finally:
        for one in reversed(started):
            one.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(10)
            one.kill()


class Skipped(Exception):
    """A case that cannot be tried here."""


def submit(case: Case, *options: str, steps: int = 20, **variables: str) -> subprocess.Popen[str]:
    """One llm-perf for each task of srun."""
    words = ["srun", "-N2", f"-n{RANKS}", *LLM_PERF, "measure", "--out", str(case.run), *options, "--"]
    return case.start([*words, *case.program(steps)], **variables)


def everything(case: Case) -> None:
    assert ended(submit(case))[0] == 0
    assert all_ranks() <= case.scopes()
    assert "rank 1: forward takes" in case.told()


def one_a_node(case: Case) -> None:
    assert ended(submit(case, "--ranks", "one-per-node"))[0] == 0
    assert len(list((case.run / "ranks").iterdir())) == 2


def one_fails(case: Case) -> None:
    assert ended(submit(case, FAILS="3"))[0] != 0
    assert "WORKLOAD_FAILED: rank 3 on node" in case.told()
    assert all_ranks() <= case.scopes()


def one_is_killed(case: Case) -> None:
    job = submit(case, steps=300)
    case.when_stepping()
    os.kill(case.pid_of(2), signal.SIGKILL)
    ended(job)
    assert "RUN_UNFINISHED: rank 2 on node" in case.told()
    assert {"rank:0", "rank:1", "rank:3"} <= case.scopes()


def a_node_is_lost(case: Case) -> None:
    job = submit(case, steps=300)
    case.when_stepping()
    for rank in range(RANKS):
        if case.manifest(rank)["node"] == "node2":
            os.kill(case.pid_of(rank), signal.SIGKILL)
    os.kill(int(case.environment["NODE2"]), signal.SIGKILL)
    ended(job)
    lost = next(one for one in case.told().split("RUN_UNFINISHED: ")[1:])
    assert "rank 3 on node2" in lost.partition(": ")[0], lost
    assert "rank:0" in case.scopes()


def by_sbatch(case: Case) -> None:
    """The submit file of the documentation."""
    words = ["sbatch", "--wait", f"--output={case.folder / 'sbatch.log'}", str(SUBMIT / "slurm.sbatch")]
    code, printed = ended(case.start([*words, *case.program(20)], RUN=str(case.run)))
    assert code == 0, printed + (case.folder / "sbatch.log").read_text()
    assert all_ranks() <= case.scopes()


def torchrun_on_two_nodes(case: Case) -> None:
    """The other submit file: two torchrun, and in each two ranks, which meet by gloo."""
    program = [sys.executable, str(RANKS_PROGRAM), str(case.folder / "records"), "--tiny"]
    log = case.folder / "torchrun.log"
    words = ["sbatch", "--wait", f"--output={log}", str(SUBMIT / "torchrun.sbatch"), *program]
    code, printed = ended(
        case.start(words, RUN=str(case.run), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), RANKS="2")
    )
    assert code == 0, printed + log.read_text()[-2000:]
    assert all_ranks() <= case.scopes()
    assert "rank 1: data takes" in case.told()


def by_mpirun(case: Case) -> None:
    """Open MPI and MPICH, whichever are here: they name the ranks differently."""
    options = {"mpirun.openmpi": ("--allow-run-as-root", "--oversubscribe"), "mpirun.mpich": ()}
    launchers = [name for name in options if shutil.which(name)]
    if not launchers:
        raise Skipped("there is no mpirun: apt install openmpi-bin mpich")
    outer, meeting = case.run, case.meeting
    for name in launchers:
        case.run, case.meeting = outer / name, meeting / name
        job = [name, *options[name], "-n", str(RANKS), *LLM_PERF, "measure", "--out", str(case.run), "--"]
        code, printed = ended(case.start([*job, *case.program(20)]))
        assert code == 0, printed[-2000:]
        assert all_ranks() <= case.scopes()
        assert "rank 1: forward takes" in case.told()


def a_sweep(case: Case) -> None:
    """Each job of a sweep is one of Slurm, by submitit; compared at the end. This Slurm has no GPUs to give."""
    if find_spec("hydra_plugins.hydra_submitit_launcher") is None:
        raise Skipped("submitit is not installed: pip install 'llm-perf-opt[slurm]'")
    words = [sys.executable, "-m", "llm_perf_opt.runners.llm_profile_runner", "-m", "launch=slurm"]
    words += [
        "hydra.launcher.gres=null",
        "hydra.launcher.timeout_min=9",
        "device=cpu",
        "infer.max_new_tokens=2,4",
        f"hydra.sweep.dir={case.run}",
    ]
    code, printed = ended(case.start(words), 400)  # submitit asks Slurm once a minute
    assert code == 0, printed[-2000:]
    assert len(list(case.run.glob("[01]/manifest.json"))) == 2, printed[-2000:]
    assert (case.run / "sweep.html").exists(), printed[-2000:]


def the_folder_is_full(case: Case) -> None:
    """Somebody fills the file system while the ranks run: all end, say so, and what they have opens elsewhere."""
    small = case.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
    try:
        case.run = small / "run"
        job = submit(case, steps=100)
        case.when_stepping()
        with contextlib.suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 12))
        _, printed = ended(job)
        assert "No space left" in printed, printed[-2000:]
        assert all(case.manifest(rank)["state"] != "running" for rank in range(RANKS))
        scopes = case.report(case.folder / "elsewhere")["scopes"]
        assert all_ranks() <= {str(scope["scope"]) for scope in scopes}
    finally:
        subprocess.run(["umount", str(small)], check=True)


SLURM_CASES: tuple[Callable[[Case], None], ...] = (
    *(
        everything,
        one_a_node,
        by_sbatch,
        torchrun_on_two_nodes,
        by_mpirun,
        a_sweep,
        one_fails,
        one_is_killed,
        the_folder_is_full,
    ),
    a_node_is_lost,  # the last: it does not come back
)


def run_cases(
    cases: Sequence[Callable[[Case], None]], only: str | None, place: Path, environment: dict[str, str]
) -> int:
    """How many failed."""
    failed = 0
    for case in cases:
        if only not in (None, case.__name__):
            continue
        began = time.monotonic()
        try:
            case(Case(place, environment, case.__name__))
            result = "ok"
        except Skipped as reason:
            result = f"skipped: {reason}"
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            result, failed = f"FAILED {error}", failed + 1
        print(f"{case.__name__:<22} {time.monotonic() - began:5.1f} s  {result}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[case.__name__ for case in (*SLURM_CASES, *RAY_CASES)])
    parser.add_argument("--ray", type=Path, help="the Python of an environment that has ray[default]; without: no Ray")
    asked = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    of_slurm = asked.only not in [case.__name__ for case in RAY_CASES]
    if missing and of_slurm:
        print(
            f"Missing: {', '.join(missing)}. On Debian: apt install slurmctld slurmd slurm-client munge",
            file=sys.stderr,
        )
        return 3
    failed = 0
    if of_slurm:
        with tempfile.TemporaryDirectory(prefix="llm-perf-cluster-") as place, slurm(Path(place)) as environment:
            failed += run_cases(SLURM_CASES, asked.only, Path(place), environment)
    if asked.ray is not None and asked.only not in [case.__name__ for case in SLURM_CASES]:
        ports = iter(free_port, 0)
        python = asked.ray.absolute()  # programs start elsewhere; not resolved: the link is what makes the environment
        with tempfile.TemporaryDirectory(prefix="lp-") as place, ray(Path(place), python, ports) as environment:
            failed += run_cases(RAY_CASES, asked.only, Path(place), environment)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

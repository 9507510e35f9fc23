"""Jobs of several ranks on a real Slurm: a controller and two node daemons on this machine, in a folder of their own.

`make cluster` installs Debian's packages where it may and runs this. Each case submits a job with one llm-perf a rank
and says what came of it: all ranks, one a node, a rank that fails, a rank that is killed, a node that is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LLM_PERF = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
NEEDED = ("munged", "slurmctld", "slurmd", "srun")
_RANKS, _LIMIT_S = 4, 120
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
# Ranks meet in each step by files in a shared folder, as a collective would make them; one that is alone gives up.
PROGRAM = """\
import os, pathlib, sys, time
import nvtx
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
meeting = pathlib.Path(sys.argv[1]) / os.environ["SLURM_JOB_ID"]
meeting.mkdir(parents=True, exist_ok=True)
for step in range(int(sys.argv[2])):
    with nvtx.annotate("step"):
        with nvtx.annotate("forward"):
            time.sleep(0.04 if rank == 1 else 0.02)
        with nvtx.annotate("all_reduce"):
            (meeting / f"{step}-{rank}").touch()
            limit = time.monotonic() + 5
            while not all((meeting / f"{step}-{other}").exists() for other in range(ranks)):
                if time.monotonic() > limit:
                    sys.exit("a rank does not come")
                time.sleep(0.0005)
    if os.environ.get("FAILS") == str(rank) and step == 5:
        sys.exit(3)
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


class Case:
    """One job, and what it left."""

    def __init__(self, folder: Path, environment: dict[str, str], name: str) -> None:
        self.run, self.environment, self.folder = folder / name, environment, folder
        (folder / "program.py").write_text(PROGRAM)

    def submit(self, *options: str, steps: int = 20, **variables: str) -> subprocess.Popen[str]:
        program = [sys.executable, str(self.folder / "program.py"), str(self.folder / "meeting"), str(steps)]
        words = ["srun", "-N2", f"-n{_RANKS}", *LLM_PERF, "measure", "--out", str(self.run), *options, "--", *program]
        environment = {**self.environment, **variables}
        return subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder
        )

    def report(self) -> dict[str, object]:
        """The merged report; made now where the job could not."""
        if not (self.run / "report.json").exists():
            subprocess.run([*LLM_PERF, "report", str(self.run), "-q"], check=True, capture_output=True)
        content: dict[str, object] = json.loads((self.run / "report.json").read_text())
        return content

    def scopes(self) -> set[str]:
        return {str(scope["scope"]) for scope in self.report()["scopes"]}  # type: ignore[attr-defined]

    def told(self) -> str:
        return " ".join(f"{one['code']}: {one['message']}" for one in self.report()["diagnostics"])  # type: ignore[attr-defined]

    def when_stepping(self) -> None:
        """Wait until the ranks have met a few times."""
        deadline = time.monotonic() + 60
        while not list((self.folder / "meeting").glob("*/8-3")):
            if time.monotonic() > deadline:
                raise AssertionError("the job does not begin")
            time.sleep(0.1)

    def pid_of(self, rank: int) -> int:
        return int(json.loads((self.run / f"ranks/rank-{rank}/manifest.json").read_text())["pid"])


def ended(job: subprocess.Popen[str]) -> int:
    """Its exit code; a job that hangs is the worst that can be."""
    try:
        job.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        job.kill()
        raise AssertionError("the job hangs") from None
    return job.returncode


def everything(case: Case) -> None:
    assert ended(case.submit()) == 0
    assert {f"rank:{rank}" for rank in range(_RANKS)} <= case.scopes()
    assert "rank 1: forward takes" in case.told()


def one_a_node(case: Case) -> None:
    assert ended(case.submit("--ranks", "one-per-node")) == 0
    assert len(list((case.run / "ranks").iterdir())) == 2


def one_fails(case: Case) -> None:
    assert ended(case.submit(FAILS="3")) != 0
    assert "WORKLOAD_FAILED: rank 3 on node" in case.told()
    assert {f"rank:{rank}" for rank in range(_RANKS)} <= case.scopes()


def one_is_killed(case: Case) -> None:
    job = case.submit(steps=300)
    case.when_stepping()
    os.kill(case.pid_of(2), signal.SIGKILL)
    ended(job)
    assert "RUN_UNFINISHED: rank 2 on node" in case.told()
    assert {"rank:0", "rank:1", "rank:3"} <= case.scopes()


def a_node_is_lost(case: Case) -> None:
    job = case.submit(steps=300)
    case.when_stepping()
    for rank in range(_RANKS):
        if json.loads((case.run / f"ranks/rank-{rank}/manifest.json").read_text())["node"] == "node2":
            os.kill(case.pid_of(rank), signal.SIGKILL)
    os.kill(int(case.environment["NODE2"]), signal.SIGKILL)
    ended(job)
    lost = next(one for one in case.told().split("RUN_UNFINISHED: ")[1:])
    assert "rank 3 on node2" in lost.partition(": ")[0], lost
    assert "rank:0" in case.scopes()


CASES: tuple[Callable[[Case], None], ...] = (everything, one_a_node, one_fails, one_is_killed, a_node_is_lost)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[case.__name__ for case in CASES])
    only = parser.parse_args().only
    os.environ["PATH"] += ":/usr/sbin"
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        print(
            f"Missing: {', '.join(missing)}. On Debian: apt install slurmctld slurmd slurm-client munge",
            file=sys.stderr,
        )
        return 3
    failed = 0
    with tempfile.TemporaryDirectory(prefix="llm-perf-cluster-") as place, slurm(Path(place)) as environment:
        for case in CASES:
            if only in (None, case.__name__):
                shutil.rmtree(Path(place) / "meeting", ignore_errors=True)
                began = time.monotonic()
                try:
                    case(Case(Path(place), environment, case.__name__))
                    result = "ok"
                except (AssertionError, subprocess.SubprocessError) as error:
                    result, failed = f"FAILED {error}", failed + 1
                print(f"{case.__name__:<16} {time.monotonic() - began:5.1f} s  {result}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

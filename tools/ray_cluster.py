"""Jobs of several ranks on a real Ray of two nodes on this machine, submitted as the documentation says."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster_cases import RANKS, SUBMIT, Case, all_ranks, ended


@contextlib.contextmanager
def ray(folder: Path, python: Path, ports: Iterator[int]) -> Iterator[dict[str, str]]:
    """A head and a second node, each with two CPUs; the variables with which jobs are submitted to it."""
    port, dashboard = next(ports), next(ports)
    command = [str(python.with_name("ray")), "start", "--block", "--num-cpus", "2", "--disable-usage-stats"]
    # Ray's own files: a path of sockets must be short.
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_HEAD": f"127.0.0.1:{port}",
        "RAY_DEDUP_LOGS": "0",
        "RAY_AUTH_MODE": "disabled",  # else a token that another Ray left in the home folder would be asked for
    }
    head = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder / 'r'}"]
    head += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    second = [f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1"]
    started: list[subprocess.Popen[bytes]] = []
    nodes = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}
    try:
        for words in (head, second):
            quiet = subprocess.DEVNULL
            started.append(
                subprocess.Popen([*command, *words], env=nodes, stdout=quiet, stderr=quiet, start_new_session=True)
            )
            time.sleep(8)
        environment["NODE2"] = str(started[-1].pid)
        deadline = time.monotonic() + 180  # on a busy machine it takes its time
        asked = [str(python.with_name("ray")), "job", "list"]
        while subprocess.run(asked, env=environment, capture_output=True, timeout=60).returncode:
            if time.monotonic() > deadline:
                raise SystemExit(f"Ray does not come up: see the logs in {folder / 'r'}")
            time.sleep(1)
        yield environment
    finally:
        for one in reversed(started):
            for number in (signal.SIGTERM, signal.SIGKILL):  # all that it has started is in its session
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(15)


def submit(case: Case, steps: int, **variables: str) -> subprocess.Popen[str]:
    words = ["ray", "job", "submit", "--", "python", str(SUBMIT / "ray_job.py"), "--ranks", str(RANKS)]
    for name, value in variables.items():
        words[3:3] = ["--runtime-env-json", f'{{"env_vars": {{"{name}": "{value}"}}}}']
    return case.start([*words, "--out", str(case.run), *case.program(steps)])


def ray_everything(case: Case) -> None:
    code, printed = ended(submit(case, 20))
    assert code == 0, printed[-2000:]
    assert all_ranks() <= case.scopes()
    assert "rank 1: forward takes" in case.told()


def sweep(case: Case, *words: str, name: str = "", **variables: str) -> tuple[int, str]:
    """In the Python of Ray, which has the product: on the two nodes, one job on each at a time. They have no GPU."""
    command = ["python", "-m", "llm_perf_opt.runners.llm_profile_runner", "-m", "launch=ray", "device=cpu", *words]
    folder = f"hydra.sweep.dir={case.run / name}"
    variables = {"RAY_ADDRESS": case.environment["RAY_HEAD"], **variables}
    return ended(case.start([*command, "hydra.launcher.ray.remote.num_cpus=2", folder], **variables), 400)


def ray_sweep(case: Case) -> None:
    """Two keys with two values each; a job that cannot be; GPUs, which no node has; and one that jobs take in turns."""
    no_gpu = "hydra.launcher.ray.remote.num_gpus=0"
    keys = ["infer.max_new_tokens=2,4", "infer.batch_size=1,2"]
    code, printed = sweep(case, no_gpu, *keys, name="all")
    assert code == 0, printed[-2000:]
    found = json.loads((case.run / "all" / "sweep.json").read_text())
    assert found["keys"] == ["infer.max_new_tokens", "infer.batch_size"], found["keys"]
    assert len([job for job in found["jobs"] if job["time_ns"] and not job["problem"]]) == 4, found["jobs"]
    assert set(found["best"]) == {"tokens_per_s", "time_ns"}, found["best"]
    assert "hortest time: infer.max_new_tokens=" in printed, printed[-2000:]
    pids = {json.loads(file.read_text())["pid"] for file in case.run.glob("all/[0-3]/manifest.json")}
    assert len(pids) == 4, pids
    typed = json.loads((case.run / "all" / "3" / "manifest.json").read_text())["command"]
    assert set(keys) < set(typed), typed

    code, printed = sweep(case, no_gpu, "infer.max_new_tokens=2,4,9999", name="one fails")
    assert code == 2, printed[-2000:]
    assert "job 2 (infer.max_new_tokens=9999) ended with exit code 2" in printed, printed[-2000:]
    assert len(json.loads((case.run / "one fails" / "sweep.json").read_text())["jobs"]) == 2

    for address in (case.environment["RAY_HEAD"], "local"):  # a Ray that is there, and one that the sweep starts
        code, printed = sweep(case, *keys, name=address, RAY_ADDRESS=address)
        assert code == 3, printed[-2000:]
        assert "No node of this Ray has what a job asks for (CPU: 2, GPU: 1)" in printed, printed[-2000:]

    # A Ray that is told of a GPU, and of CPUs for all jobs at once.
    resources = ["+hydra.launcher.ray.init.num_cpus=8", "+hydra.launcher.ray.init.num_gpus=1"]
    code, printed = sweep(case, *resources, "infer.max_new_tokens=30,31,32", name="turns", RAY_ADDRESS="local")
    assert code == 0, printed[-2000:]
    jobs = [json.loads(file.read_text()) for file in case.run.glob("turns/[0-2]/manifest.json")]
    times = sorted((job["started_at"], job["finished_at"]) for job in jobs)
    assert len(times) == 3, printed[-2000:]
    assert all(one[1] <= next_one[0] for one, next_one in itertools.pairwise(times)), times


def ray_sweep_loses_a_job(case: Case) -> None:
    """Its process is killed: the others are measured and compared."""
    words = ["hydra.launcher.ray.remote.num_gpus=0", "infer.max_new_tokens=2,3000,4"]
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        result = beside.submit(sweep, case, *words)
        manifest, deadline = case.run / "1" / "manifest.json", time.monotonic() + 120
        while not manifest.exists():
            assert time.monotonic() < deadline, "the job does not begin"
            time.sleep(0.1)
        os.kill(int(json.loads(manifest.read_text())["pid"]), signal.SIGKILL)
        code, printed = result.result()
    assert code == 5, printed[-2000:]
    assert "job 1 (infer.max_new_tokens=3000) was lost" in printed, printed[-2000:]
    jobs = json.loads((case.run / "sweep.json").read_text())["jobs"]
    assert [bool(job["problem"]) for job in jobs] == [False, True, False], jobs


def ray_one_fails(case: Case) -> None:
    code, printed = ended(submit(case, 20, FAILS="3"))
    assert code != 0, printed[-2000:]
    assert "WORKLOAD_FAILED: rank 3 on" in case.told()
    assert all_ranks() <= case.scopes()


def ray_one_is_killed(case: Case) -> None:
    job = submit(case, 300)
    case.when_stepping()
    os.kill(case.pid_of(2), signal.SIGKILL)
    ended(job)
    assert "RUN_UNFINISHED: rank 2 on" in case.told()
    assert {"rank:0", "rank:1", "rank:3"} <= case.scopes()


def ray_loses_a_node(case: Case) -> None:
    """All that the second node has started is gone at once, as with its machine."""
    job = submit(case, 300)
    case.when_stepping()
    os.killpg(int(case.environment["NODE2"]), signal.SIGKILL)
    ended(job)
    assert case.scopes() & all_ranks()
    assert "RUN_UNFINISHED" in case.told() or "WORKLOAD_FAILED" in case.told()


RAY_CASES: tuple[Callable[[Case], None], ...] = (
    *(ray_everything, ray_sweep, ray_sweep_loses_a_job, ray_one_fails, ray_one_is_killed),
    ray_loses_a_node,  # the last: it does not come back
)

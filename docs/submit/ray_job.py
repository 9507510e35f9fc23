"""Ranks that Ray places, each with an llm-perf of its own.

    ray job submit --working-dir . -- python ray_job.py --ranks 4 --gpus 1 --out /shared/runs/17 python train.py

All ranks start together or not at all, and none shares a GPU with another. The exit code is that of the worst.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def start(rank: int, ranks: int, address: str, port: int, words: list[str], whole_gpus: bool) -> tuple[str, int]:
    """On the machine that Ray chose: its name, and the exit code."""
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "MASTER_ADDR": address, "MASTER_PORT": port}
    if whole_gpus:  # Ray lets it see no others
        own["LOCAL_WORLD_SIZE"] = 1
    environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
    return os.uname().nodename, subprocess.run(words, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--gpus", type=float, default=0.0, help="of each rank; 0: none")
    parser.add_argument("--out", required=True, help="a folder that all machines see")
    parser.add_argument("--verb", default="measure", choices=("measure", "profile"))
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    ray.init(address="auto", logging_level="warning")
    slot = {"CPU": 1.0} | ({"GPU": asked.gpus} if asked.gpus else {})
    group = placement_group([slot] * asked.ranks, strategy="SPREAD")
    ray.get(group.ready())
    words = ["llm-perf", asked.verb, "--out", asked.out, "--", *asked.program]
    remote = ray.remote(num_cpus=1, num_gpus=asked.gpus, max_retries=0)(start)
    begun = {
        remote.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank)).remote(
            rank, asked.ranks, ray.util.get_node_ip_address(), asked.port, words, asked.gpus >= 1
        ): rank
        for rank in range(asked.ranks)
    }
    worst = 0
    for task, rank in begun.items():
        try:
            node, code = ray.get(task)
        except ray.exceptions.RayError as error:  # its machine is lost, or it was killed: the others have their runs
            node, code = type(error).__name__, 1
        print(f"rank {rank} ({node}) ended with {code}", flush=True)
        worst = max(worst, abs(code))
    if not Path(asked.out, "report.json").exists():
        subprocess.run(["llm-perf", "report", asked.out], check=False)
    return worst


if __name__ == "__main__":
    sys.exit(main())

"""One program as a plain script, for nsys and for `llm-perf measure` and `profile`: warm-up, then 12 steps.

python standalone.py NAME [--steps 12] [--tiny]
"""

from __future__ import annotations

import argparse

import torch
from parts import Bench

from programs import PROGRAMS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(PROGRAMS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench(torch.device("cpu" if given.tiny else "cuda"), given.tiny, ranges="nvtx")
    program = PROGRAMS[given.name](bench)
    for _ in range(6):
        program.step()
    bench.sync()
    for _ in range(given.steps):
        program.step()
    bench.sync()


if __name__ == "__main__":
    main()

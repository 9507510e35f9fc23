"""Stage 1: run the model, time its stages, PyTorch's profiler, static analysis. Works on a CPU alone.

    python -m llm_perf_opt.runners.llm_profile_runner KEY=VALUE …

Under nsys and ncu the deep runner starts it with `--resolved CONFIG --out DIR --profiled`: the very
configuration of the run, and nothing of it passes through a command line twice.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from llm_perf_opt.process import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()  # before Hydra is imported, which takes its time


def job(config: dict[str, Any], run: Path) -> int:
    """One run of stage 1 into its own folder."""
    from llm_perf_opt.rundir.directory import RunDirectory
    from llm_perf_opt.runners.app import start_folder, typed
    from llm_perf_opt.runners.stage1_settings import stage1_settings
    from llm_perf_opt.stage1.workload_run import make_ready, run_stage1

    settings = stage1_settings(config, folder=start_folder())
    ready = make_ready(settings)  # before the run directory: values that cannot be leave none
    directory = RunDirectory.create(
        *(run, [], config),
        recordings=False,
        made_by="llm_profile_runner",
        typed=typed("llm_perf_opt.runners.llm_profile_runner"),
        show_command=config["run"]["show_command"],
    )
    state = "failed"
    try:
        code = run_stage1(settings, run, ready=ready)
        state = "failed" if code else "done"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        directory.finish(state)
        directory.release()
    return code


def resolved(words: list[str]) -> int:
    """Stage 1 as a part of another run."""
    from omegaconf import DictConfig, OmegaConf

    from llm_perf_opt.errors import UserError
    from llm_perf_opt.runners.app import checked, print_error
    from llm_perf_opt.runners.stage1_settings import stage1_settings
    from llm_perf_opt.stage1.workload_run import run_stage1

    parser = argparse.ArgumentParser()
    parser.add_argument("--resolved", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--profiled", action="store_true")
    arguments = parser.parse_args(words)
    config = OmegaConf.load(arguments.resolved)
    assert isinstance(config, DictConfig)
    try:
        settings = stage1_settings(checked(config), folder=Path(arguments.folder), profiled=arguments.profiled)
        return run_stage1(settings, Path(arguments.out))
    except UserError as error:
        print_error(error)
        return int(error.code)


if __name__ == "__main__":
    own = sys.argv[1:]
    from llm_perf_opt.runners.app import start

    sys.exit(resolved(own) if "--resolved" in own else start(job))

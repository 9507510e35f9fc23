"""Stage 2: the workload under nsys and ncu, from a Hydra configuration.

python -m llm_perf_opt.runners.deep_profile_runner KEY=VALUE …
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.process import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()  # before Hydra is imported, which takes its time

if TYPE_CHECKING:
    from llm_perf_opt.rundir.directory import RunDirectory


def job(config: dict[str, Any], run: Path) -> int:
    """One run: stage timings of the built-in workload, timeline, counters, report."""
    import yaml

    from llm_perf_opt.capture.preparation import ready
    from llm_perf_opt.capture.session import run_profile
    from llm_perf_opt.rundir.directory import RunDirectory
    from llm_perf_opt.runners.app import start_folder, typed
    from llm_perf_opt.runners.requests import deep_request, is_stage1
    from llm_perf_opt.runners.stage1_settings import stage1_settings
    from llm_perf_opt.stage1.workload_run import choose_inputs
    from llm_perf_opt.workloads.registry import check_model

    if is_stage1(config):  # values that cannot be are answered here, and leave no run directory
        settings = stage1_settings(config, folder=start_folder())
        check_model(settings.model)
        choose_inputs(settings)
    # The workload gets the configuration as it is; what the run directory keeps has no secrets in it.
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as private:
        file = Path(private) / "config.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        request, tools = ready(deep_request(config, run, file, start_folder()))
        directory = RunDirectory.create(
            *(run, request.command, config),
            made_by="deep_profile_runner",
            folder=start_folder(),
            typed=typed("llm_perf_opt.runners.deep_profile_runner"),
            show_command=request.show_command,
        )
        directory.instead[str(file.resolve())] = str((directory.path / "config.yaml").resolve())
        return run_profile(request, tools, directory)


def resume(
    directory: RunDirectory, config: dict[str, Any], changed: dict[str, Any], *, as_json: bool, quiet: bool
) -> int:
    """Go on with a run of this runner. `changed`: limits that are to be others now, by their flags' names."""
    import yaml

    from llm_perf_opt.capture.session import resume_profile
    from llm_perf_opt.errors import UserError
    from llm_perf_opt.options import checked_values
    from llm_perf_opt.runners.requests import deep_request

    with tempfile.TemporaryDirectory(prefix="llm-perf-") as private:
        file = Path(private) / "config.yaml"
        try:
            config = checked_values(config)
            nsys, ncu = config["pipeline"]["nsys"], config["pipeline"]["ncu"]
            if "timeout" in changed:
                nsys["timeout_s"] = ncu["timeout_s"] = changed["timeout"]
            if "max_size" in changed:
                nsys["max_size"] = changed["max_size"]
            file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
            request = deep_request(config, directory.path, file, Path(directory.manifest.folder))
            directory.instead[str(file.resolve())] = str((directory.path / "config.yaml").resolve())
        except (KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
            raise UserError(
                f"The configuration of {directory.path} is not that of a run ({error}).", "Start a new run."
            ) from error
        return resume_profile(request, directory, as_json=as_json, quiet=quiet)


if __name__ == "__main__":
    from llm_perf_opt.process.streams import keep_open
    from llm_perf_opt.runners.app import start

    keep_open()
    sys.exit(start(job))

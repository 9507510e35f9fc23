"""Stage 2: the workload under nsys and ncu, from a Hydra configuration.

python -m llm_perf_opt.runners.deep_profile_runner KEY=VALUE …
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from llm_perf_opt import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()  # before Hydra is imported, which takes its time


def job(config: dict[str, Any], run: Path) -> int:
    """One run: stage timings of the built-in workload, timeline, counters, report."""
    import yaml

    from llm_perf_opt.pipeline.profile import ready, run_profile
    from llm_perf_opt.profiling.run_directory import RunDirectory
    from llm_perf_opt.runners.app import start_folder
    from llm_perf_opt.runners.requests import profile_request

    # The workload gets the configuration as it is; what the run directory keeps has no secrets in it.
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as private:
        file = Path(private) / "config.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        request, tools = ready(profile_request(config, run, file, start_folder()))
        directory = RunDirectory.create(run, request.command, config)
        return run_profile(request, tools, directory)


if __name__ == "__main__":
    from llm_perf_opt.runners.app import start

    sys.exit(start(job))

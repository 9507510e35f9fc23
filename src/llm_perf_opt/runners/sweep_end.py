"""When all jobs of a sweep are done: one comparison over them. Hydra calls it, whichever launcher ran the jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.names import printable


class SweepEnd(Callback):
    """Named in conf/config.yaml."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from llm_perf_opt.api.sweeps import read_sweep, write_sweep

        folder = Path(str(config.hydra.sweep.dir))
        try:
            sweep = read_sweep(folder)
            files = write_sweep(sweep, folder)
        except UserError as error:  # the jobs have their own reports
            print(printable(f"There is no comparison of the jobs: {error}"), file=sys.stderr)
            return
        for sentence in sweep.sentences:
            print(printable(sentence))
        print(printable(f"All jobs compared: {files[-1]}"))

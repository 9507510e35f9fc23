"""Jobs of a sweep as tasks of Ray, each in a process of its own and on its own GPUs. Hydra looks for launchers here.

It takes the keys of hydra-ray-launcher. With that one a job that no node can run waits without a word, a job whose
process died is started again in the same folder, and with one lost job the comparison of all is lost.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from llm_perf_opt.errors import MissingTool

_LOOK_S, _END_S = 1.0, 30.0
# Jobs print much alike, and all of it is wanted; nothing is sent anywhere.
_RAY = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class RayLauncher(Launcher):
    """`ray`: what ray.init() and ray.remote() are given. `wait_s`: how long nodes that can run a job may take to come."""

    def __init__(self, ray: DictConfig, wait_s: float) -> None:
        self._given: Any = OmegaConf.to_container(ray, resolve=True)
        self._wait_s = wait_s

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from llm_perf_opt.runners.app import note_code

        setup_globals()
        configs = [self._configured(words, initial_job_idx + n) for n, words in enumerate(job_overrides)]
        same = set.intersection(*map(set, job_overrides))
        names = [
            f"job {config.hydra.job.num} ({' '.join(word for word in words if word not in same)})"
            for config, words in zip(configs, job_overrides, strict=True)
        ]
        codes = self._codes(configs, names)
        for code in codes:
            note_code(code)
        ended = zip(job_overrides, configs, codes, strict=True)
        return [
            JobReturn(overrides=words, cfg=config, status=JobStatus.COMPLETED, _return_value=code)
            for words, config, code in ended
        ]

    def _configured(self, overrides: Sequence[str], number: int) -> DictConfig:
        config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
            config.hydra.sweep.dir = str(Path(str(self._config.hydra.sweep.dir)).absolute())
        return config

    def _codes(self, configs: list[DictConfig], names: list[str]) -> list[int]:
        """The exit code of each job, when all have ended."""
        from llm_perf_opt.errors import ExitCode
        from llm_perf_opt.process import interrupts
        from llm_perf_opt.runners.app import print_error

        ray, asked = self._ray(), self._given["remote"]
        interrupts.raise_in_order()  # an interrupt is passed on to the jobs
        task, state = ray.remote(**asked)(_run), Singleton.get_state()
        left = {
            task.options(name=name.partition(" (")[0]).remote(self._context, config, self._task, state): n
            for n, (config, name) in enumerate(zip(configs, names, strict=True))
        }
        codes = [int(ExitCode.MISSING_TOOL)] * len(configs)
        seen = time.monotonic()  # a node that can run them
        try:
            while left:
                for one in ray.wait(list(left), timeout=_LOOK_S)[0]:
                    number = left.pop(one)
                    codes[number] = _ended(ray, one, names[number])
                if can_run(asked, ray.nodes()):
                    seen = time.monotonic()
                elif left and time.monotonic() - seen >= self._wait_s:
                    error = nobody_runs(asked)
                    if len(left) == len(configs):
                        raise error
                    print_error(error)
                    break
        finally:
            for one in left:
                ray.cancel(one)
            if left:
                ray.wait(list(left), num_returns=len(left), timeout=_END_S)
        return codes

    def _ray(self) -> Any:
        from llm_perf_opt.errors import MissingTool

        os.environ.update({name: value for name, value in _RAY.items() if name not in os.environ})
        try:
            import ray
        except ImportError:
            raise MissingTool("Ray is not installed.", "pip install 'llm-perf-opt[ray]'") from None
        if not ray.is_initialized():
            try:
                ray.init(**self._given["init"])
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise MissingTool(f"Ray does not start: {error}", "See hydra.launcher.ray.init.") from error
        return ray


def _run(context: HydraContext, config: DictConfig, task: TaskFunction, state: dict[Any, Any]) -> int:
    """In a process that Ray has started, maybe on another machine."""
    setup_globals()
    Singleton.set_state(state)
    HydraConfig.instance().set_config(config)
    with contextlib.suppress(OSError):
        os.chdir(str(config.hydra.runtime.cwd))
    job = run_job(
        task, config, job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir", hydra_context=context
    )
    return int(job.return_value)


def _ended(ray: Any, job: Any, name: str) -> int:
    """Its exit code; of one that was lost, that nothing was captured."""
    from llm_perf_opt.errors import ExitCode, UserError
    from llm_perf_opt.runners.app import print_error

    try:
        code = int(ray.get(job))
        said = f"{name} ended with exit code {code}." if code else ""
    except ray.exceptions.RayError as error:
        code = int(ExitCode.NOTHING_CAPTURED)
        said = f"{name} was lost ({type(error).__name__}): {error}"
    if said:
        print_error(UserError(said))
    return code


def can_run(asked: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of the nodes has all that a job asks for, free or not."""
    wanted = _wanted(asked)
    return any(
        node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items())
        for node in nodes
    )


def nobody_runs(asked: Mapping[str, Any]) -> MissingTool:
    from llm_perf_opt.errors import MissingTool

    wanted = ", ".join(f"{name}: {amount:g}" for name, amount in _wanted(asked).items())
    return MissingTool(
        f"No node of this Ray has what a job asks for ({wanted}).",
        "For jobs on CPUs: hydra.launcher.ray.remote.num_gpus=0. Where nodes start on demand: hydra.launcher.wait_s=600.",
    )


def _wanted(asked: Mapping[str, Any]) -> dict[str, float]:
    own = {"CPU": asked.get("num_cpus"), "GPU": asked.get("num_gpus"), **(asked.get("resources") or {})}
    return {name: amount for name, amount in own.items() if amount}

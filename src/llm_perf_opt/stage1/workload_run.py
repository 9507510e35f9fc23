"""Runs stage 1 from its settings into a run directory.

Files are written as soon as their numbers are there: a profiler that fails, or a user who has waited long
enough, leaves the timings of the passes before.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
from attrs import define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.report.files import make_folder, write_text
from llm_perf_opt.rundir.secrets import kept_environment
from llm_perf_opt.stage1.direct_inference import predict
from llm_perf_opt.stage1.markdown_files import render_operators, render_report, show_summary
from llm_perf_opt.stage1.other_profilers import attached_profiler
from llm_perf_opt.stage1.session_timing import Batches, Timing, time_passes, warm_up
from llm_perf_opt.stage1.settings import Stage1Settings
from llm_perf_opt.stage1.torch_profile import Profile, take_profile
from llm_perf_opt.static_analysis.static_compute import analyse_session
from llm_perf_opt.version import __version__
from llm_perf_opt.workloads.datasets import Item, Sampled, batches, described, load_items, sample
from llm_perf_opt.workloads.device import explained_failures, forget_others, import_torch
from llm_perf_opt.workloads.model_session import Session
from llm_perf_opt.workloads.registry import open_session

FOLDER = "torch_profiler"
STATIC_FOLDER = "static_analysis"
MEASURED = Path("measure/run.json")
PREDICTIONS = "predictions.jsonl"


@define(frozen=True)
class Ready:
    """A model and its inputs. Whatever is wrong with them has been found, and nothing has been written."""

    session: Session[Any]
    inputs: Sampled
    batches: Sequence[Sequence[Item]]
    prepared: Batches


def make_ready(settings: Stage1Settings) -> Ready:
    """Find the inputs, load the model, and prepare the first batch."""
    session = open_session(settings.model, settings.infer)
    inputs = choose_inputs(settings)
    forget_others()
    session.load()
    grouped = list(batches(inputs.items, settings.infer.batch_size))
    prepared = Batches(session, grouped)
    with explained_failures(session.name):
        prepared.prepared(0)
    return Ready(session, inputs, grouped, prepared)


def choose_inputs(settings: Stage1Settings) -> Sampled:
    """What the settings name, and which of it they ask for."""
    items = load_items(settings.dataset, settings.manifest, settings.folder)
    return sample(items, settings.dataset.sampling, settings.infer.batch_size)


def run_stage1(settings: Stage1Settings, run_dir: Path, *, quiet: bool = False, ready: Ready | None = None) -> int:
    """Load, warm up, time, profile, analyse, predict; in that order, each where it was asked for."""
    import yaml

    ready = ready or make_ready(settings)
    session, chosen, grouped, prepared = ready.session, ready.inputs, ready.batches, ready.prepared
    folder = make_folder(make_folder(run_dir) / FOLDER)
    _write_json(run_dir / "env.json", kept_environment(os.environ))
    inputs = [described(item) for item in chosen.items]
    write_text(run_dir / "inputs.yaml", yaml.safe_dump(inputs, sort_keys=False, allow_unicode=True))
    with explained_failures(session.name):
        warm_up(session, prepared, settings.warmup)
        timing = time_passes(
            session, prepared, settings.repeats, _times_file(settings, run_dir), warm=settings.warmup > 0
        )
    metrics = _metrics(settings, session, timing, chosen)

    def save(profile: Profile | None) -> None:
        metrics["notes"] = [*session.notes, *([] if profile is None else profile.notes)]
        _write_json(folder / "metrics.json", metrics)
        write_text(folder / "report.md", render_report(metrics, timing, profile, metrics["notes"]))
        if profile is not None:
            write_text(folder / "operators.md", render_operators(profile))

    save(None)
    profile = _profile(settings, session, prepared, folder, metrics)
    save(profile)
    metrics["static_analysis"] = _static_analysis(settings, session, run_dir / STATIC_FOLDER)
    save(profile)
    if settings.direct_inference.enable:
        output = settings.direct_inference.output
        target = run_dir / (output or PREDICTIONS)
        done = predict(session, grouped, target)
        metrics["direct_inference"] = {**attrs.asdict(done), "path": str(done.path)}
        save(profile)
    if not quiet:
        show_summary(timing, metrics, run_dir)
    return int(ExitCode.DONE)


def _times_file(settings: Stage1Settings, run_dir: Path) -> Path | None:
    """None where a profiler watches: the file is for undisturbed times."""
    if settings.profiled or attached_profiler() is not None:
        return None
    return make_folder(run_dir / MEASURED.parent) / MEASURED.name


def _profile(
    settings: Stage1Settings, session: Session[Any], prepared: Batches, folder: Path, metrics: dict[str, Any]
) -> Profile | None:
    reason = _why_no_profile(settings)
    if reason is not None:
        metrics["torch_profiler"] = {"status": "off", "reason": reason}
        return None
    with explained_failures(session.name):
        profile = take_profile(session, prepared.prepared(0), settings.torch_profiler, folder)
    fields = attrs.asdict(profile)
    if "cuda" not in profile.activities:
        for operator in fields["operators"]:  # nobody looked at a device: that is not zero
            operator |= {"self_device_ms": None, "self_device_bytes": None}
    metrics["torch_profiler"] = {"status": "done", **fields}
    return profile


def _why_no_profile(settings: Stage1Settings) -> str | None:
    if not settings.torch_profiler.enable:
        return "pipeline.torch_profiler.enable=false."
    tool = attached_profiler()
    if tool is not None:
        return f"this run is recorded by {tool}, and only one profiler can watch the GPU."
    return None


def _static_analysis(settings: Stage1Settings, session: Session[Any], folder: Path) -> dict[str, Any]:
    if not settings.static_analysis:
        return {"status": "off", "reason": "pipeline.static_analysis.enable=false."}
    try:
        with explained_failures(session.name):
            return {"status": "done", **analyse_session(session, make_folder(folder))}
    except UserError as error:
        # The timings are good without it: say why it is missing and go on.
        return {"status": "failed", "reason": str(error)}


def _metrics(settings: Stage1Settings, session: Session[Any], timing: Timing, inputs: Sampled) -> dict[str, Any]:
    model = settings.model
    return {
        "schema_version": 1,
        "generated_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": model.name,
            "path": None if model.path is None else str(model.path),
            "dtype": model.dtype,
            "config": dict(model.config),
            "attn_implementation": model.attn_implementation,
            "compile": model.compile,
            "cuda_graphs": model.cuda_graphs,
            "seed": model.seed,
            "stages": list(session.stages),
            "facts": dict(session.facts()),
        },
        "device": _device_facts(session.device),
        "versions": _versions(),
        "infer": attrs.asdict(settings.infer),
        "inputs": len(inputs.items),
        "inputs_given": inputs.given,
        "inputs_run": str(inputs),
        "timing": {"warmup": settings.warmup, **attrs.asdict(timing)},
        "torch_profiler": {"status": "off", "reason": "the run ended before it."},
        "static_analysis": {"status": "off", "reason": "the run ended before it."},
        "notes": list(session.notes),
    }


def _device_facts(device: Any) -> dict[str, Any]:
    torch = import_torch()
    if device.type != "cuda":
        return {"name": f"CPU ({platform.machine()})", "threads": torch.get_num_threads()}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "index": device.index,
        "memory_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
        "compute_capability": f"{found.major}.{found.minor}",
    }


def _versions() -> dict[str, str | None]:
    torch = import_torch()
    found: dict[str, str | None] = {"llm_perf_opt": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "nvtx"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    return found


def _write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")

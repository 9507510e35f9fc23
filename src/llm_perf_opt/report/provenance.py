"""How a report came about, as cards of the page: recordings, GPUs, the run with its commands, the report itself."""

from __future__ import annotations

from typing import Any

from attrs import Factory, define

from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.options.declared import options_of
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.shell import shell_line
from llm_perf_opt.report.identity import date_words
from llm_perf_opt.report.page_data import peaks_used
from llm_perf_opt.report.text import quantity
from llm_perf_opt.rundir.command_lines import shell_text
from llm_perf_opt.version import __version__


@define
class ProvenanceCard:
    """Facts about one thing that took part, and commands worth copying."""

    title: str
    facts: list[tuple[str, str]] = Factory(list)
    commands: list[tuple[str, str]] = Factory(list)
    configuration: str = ""
    more: list[tuple[str, str]] = Factory(list)  # peaks of other data types


def provenance(report: NCUProfileRegionReport) -> list[ProvenanceCard]:
    cards = []
    run = report.environment.get("run")
    if isinstance(run, dict):
        cards.append(_run_card(run))
    facts = {str(f.get("input")): f for f in report.environment.get("recordings", []) if isinstance(f, dict)}
    for source in report.inputs:
        card = ProvenanceCard(visible(str(source.get("path", "recording"))))
        card.facts.append(("kind", visible(str(source.get("kind", "")))))
        if isinstance(source.get("bytes"), int):
            card.facts.append(("size", quantity(source["bytes"], "B")))
        for name, value in facts.get(str(source.get("path")), {}).items():
            if name != "input" and value not in (None, "", {}, []):
                told = date_words(str(value)) if name == "recorded_at" else visible(_plain(value), 300)
                card.facts.append((visible(str(name)).replace("_", " "), told))
        cards.append(card)
    scope = report.main_scope
    used = peaks_used(scope.regions if scope else [])
    cards += [_gpu_card(gpu, used) for gpu in report.hardware]
    cards.append(_report_card(report))
    return cards


def _gpu_card(gpu: GpuHardware, used: list[str]) -> ProvenanceCard:
    """The denominators of every percentage on the page; peaks that were not `used` stand apart."""
    card = ProvenanceCard(visible(gpu.name) + (f" · device {gpu.device}" if gpu.device is not None else ""))
    card.facts.append(("figures", f"{gpu.basis}: {visible(gpu.source, 300)}"))
    for name, amount in (
        ("memory bandwidth", gpu.bandwidth),
        ("measured bandwidth", gpu.calibrated_bandwidth),
        ("L2 bandwidth", gpu.l2_bandwidth),
        ("memory", gpu.memory),
        ("L2 cache", gpu.l2_cache),
        ("clock", gpu.clock),
    ):
        if amount is not None:
            card.facts.append((name, quantity(amount.value, amount.unit)))
    for name, peak in gpu.peaks.items():
        measured = gpu.calibrated_peaks.get(name)
        beside = f" · measured {quantity(measured.value, measured.unit)}" if measured else ""
        fact = visible(name).replace("_", " "), quantity(peak.value, peak.unit) + beside
        (card.facts if name in used else card.more).append(fact)
    card.facts += [("calibration", visible(gpu.calibration, 300))] if gpu.calibration else []
    card.facts += [("note", visible(note, 300)) for note in gpu.notes]
    return card


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


_CLOCKS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "pstate")


def _run_card(run: dict[str, Any]) -> ProvenanceCard:
    """Who ran what, with which tools, at which clocks. The manifest may be of any version: nothing is taken for granted."""
    card = ProvenanceCard("The run")
    for name in ("started_at", "finished_at", "state", "inputs"):
        if run.get(name):
            told = date_words(str(run[name])) if name.endswith("_at") else visible(str(run[name]))
            card.facts.append((name.replace("_", " "), told))
    card.facts += [(visible(str(k)), visible(_plain(v), 200)) for k, v in _pairs(run.get("tools"))]
    for when, gpus in (("before", run.get("gpus_before")), ("after", run.get("gpus_after"))):
        for gpu in gpus if isinstance(gpus, list) else []:
            facts = [f"{name} {gpu[name]}" for name in _CLOCKS if isinstance(gpu, dict) and gpu.get(name)]
            card.facts.append((f"GPU {when}", visible(", ".join(facts), 300)))
    # Nested settings are in the configuration below, where they can be read; so is what nobody asked for.
    nested = (dict,) if run.get("configuration") else ()
    usual = _defaults(run.get("command"))
    card.facts += [
        (visible(str(k)).replace("_", " "), visible(_plain(v), 200))
        for k, v in _pairs(run.get("settings"))
        if v not in (None, [], "", False) and v != usual.get(str(k)) and not isinstance(v, nested)
    ]
    for title, name in (("what was typed", "command"), ("the program", "workload")):
        if isinstance(words := run.get(name), list) and words and (name == "command" or words != run.get("command")):
            card.commands.append((title, shell_text(list(map(str, words)))))
    steps = run.get("steps")
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and isinstance(step.get("argv"), list):
            seconds = f", {step['seconds']:.1f} s" if isinstance(step.get("seconds"), float) else ""
            code = f", exit code {step['exit_code']}" if isinstance(step.get("exit_code"), int) else ""
            title = visible(f"{step.get('name', 'step')}{seconds}{code}")
            card.commands.append((title, shell_text(list(map(str, step["argv"])))))
    card.configuration = "\n".join(
        visible(line, 400) if line else "" for line in str(run.get("configuration") or "").splitlines()
    )
    return card


def _defaults(command: object) -> dict[str, Any]:
    """What the options of `llm-perf VERB` are where they are not given."""
    verb = str(command[1]) if isinstance(command, list) and len(command) > 1 else ""
    return {option.dest: option.default for option in options_of(verb)}


def _pairs(value: object) -> list[tuple[object, object]]:
    return list(value.items()) if isinstance(value, dict) else []


def _report_card(report: NCUProfileRegionReport) -> ProvenanceCard:
    card = ProvenanceCard("This report")
    card.facts = [
        ("made", date_words(report.generated_at)),
        ("llm-perf", str(report.environment.get("llm_perf_opt", __version__))),
        ("attribution", report.attribution),
        ("settings", report.config_fingerprint),
    ]
    for name, patterns in report.selection.items():
        if patterns:
            card.facts.append((visible(name).replace("_", " "), visible(", ".join(patterns), 300)))
    if not isinstance(report.environment.get("run"), dict):  # of a run, what was typed stands above
        paths = [str(i.get("path", "")) for i in report.inputs]
        card.commands.append(("the command", f"llm-perf report {shell_line(paths)}"))
    return card

"""Which levers a trial takes: those that fixes of the answer ask for, or those that could help such a program."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.comparing.comparison import RegionComparison
from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.trying.levers import Lever, all_levers
from llm_perf_opt.trying.loop_steps import STEP
from llm_perf_opt.trying.process_notes import ProcessNotes
from llm_perf_opt.trying.program_runs import already_set

_MOST_SHARE = 0.98  # nothing gains more than fifty times
_LACKING = {
    "cuda": "the program uses no GPU",
    "generate": "the program does not call generate()",
    "calls outside training": "its models are called only in training mode: model.eval() is missing, or they are being trained",
    "calls with gradients": "no call of a model outside training keeps gradients",
    "float32 models": "no model is in fp32",
    "data loaders without workers": "every DataLoader has workers, or there is none",
    "optimizers that can be fused": "there is no optimiser left to fuse",
    "unaligned linear layers": "no linear layer has an unaligned size",
    "garbage collections": "no garbage was collected while the model ran",
}
_NOT_TRAINED = "its models are in training mode but never trained: call model.eval() first"


def choose_levers(fixes: Sequence[Fix], notes: ProcessNotes) -> list[Lever]:
    """Those with the largest promise first, then those that help such programs often. `notes`: of a run of the program as it is."""
    possible = [lever for lever in all_levers().values() if not lacking(lever, notes)]
    possible = [lever for lever in possible if not any(notes.counts.get(what) for what in lever.unless)]
    chosen = [lever for lever in possible if lever.general or promised(lever, fixes)]
    return sorted(chosen, key=lambda lever: _rank(promised(lever, fixes), lever))


def _rank(promise: float, lever: Lever) -> tuple[float, float, float]:
    """Of those that promise about as much, first the one that need not be compiled."""
    return -round(promise, 1), lever.warmup_s, -promise


def lacking(lever: Lever, notes: ProcessNotes) -> str:
    """Why a lever would change nothing of this program; nothing where it may."""
    if name := already_set(lever):
        return f"{name} is set already"
    missing = [need for need in lever.needs if not notes.counts.get(need)]
    if not missing:
        return ""
    counts = notes.counts
    if "calls with gradients" in missing and counts.get("calls in training") and not counts.get("backward"):
        return _NOT_TRAINED
    first = "cuda" if "cuda" in missing else missing[0]
    return _LACKING.get(first, f"this program has none of these: {first}")


def promised(lever: Lever, fixes: Sequence[Fix]) -> float:
    """What part of their stage's time the fixes would win that this lever stands for: of the stage with most."""
    shares: dict[str, float] = {}
    for fix in fixes:
        if fix.rule in lever.rules:
            shares[fix.stage] = shares.get(fix.stage, 0.0) + fix.gain_share
    return max(shares.values(), default=0.0)


def predicted_gain(
    levers: Sequence[Lever], fixes: Sequence[Fix], regions: Sequence[RegionComparison], stage: RegionComparison
) -> float | None:
    """By what factor a stage was said to become faster; None where nothing was said of what is in it."""
    rules = {rule for lever in levers for rule in lever.rules}
    whole = _time(stage)
    by_key = {_without_step(r.key): r for r in regions if r.key == stage.key or r.key.startswith(f"{stage.key}/")}
    asked = [fix for fix in fixes if fix.rule in rules]
    shares = [fix.gain_share * _time(by_key[fix.stage]) / whole for fix in asked if whole and fix.stage in by_key]
    if not shares:  # it may be said of what is around: the steps of a loop share alike in that
        around = [fix for fix in asked if _without_step(stage.key).startswith(f"{fix.stage}/")]
        nearest = max((fix.stage for fix in around), key=len, default="")
        shares = [fix.gain_share for fix in around if fix.stage == nearest]
    return 1 / (1 - min(sum(shares), _MOST_SHARE)) if shares else None


def _time(region: RegionComparison) -> float:
    """Of all its steady instances."""
    return (region.before_ns or 0.0) * region.instances[0]


def _without_step(key: str) -> str:
    """As the report calls it, which knows no steps."""
    domain, at, path = key.rpartition("@")
    return f"{domain}{at}{path.removeprefix(f'{STEP}/')}"

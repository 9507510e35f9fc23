"""Verdict rules, kept as data (`rules.toml`): conditions over facts, evidence, confidence, advice."""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import Factory, define

from llm_perf_opt.metrics.quantity import Quantity, shown
from llm_perf_opt.package_data import read_toml
from llm_perf_opt.regions.model import Evidence, Verdict

UNKNOWN = "unknown"


@define
class Facts:
    """Numbers by name, None where not known; and words for the texts."""

    numbers: dict[str, float | None] = Factory(dict)
    words: dict[str, str] = Factory(dict)

    def share(self, name: str, value: float | None) -> None:
        """A number that is shown in per cent."""
        self.numbers[name] = value
        self.words[name] = "–" if value is None else shown(Quantity(value, "ratio"))

    def amount(self, name: str, quantity: Quantity | None) -> None:
        self.words[name] = shown(quantity)


@define(frozen=True)
class Condition:
    """`fact` at least, or at most, a threshold."""

    fact: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def threshold(self) -> float:
        return self.at_least if self.at_least is not None else self.at_most or 0.0

    def holds(self, value: float) -> bool:
        return value >= self.threshold if self.at_least is not None else value <= self.threshold

    def margin(self, value: float) -> float:
        """How far on the right side: 1 is just so."""
        over, under = (value, self.threshold) if self.at_least is not None else (self.threshold, value)
        return over / under if under > 0 else float("inf")


@define(frozen=True)
class Advice:
    text: str
    when: tuple[Condition, ...] = ()


@define(frozen=True)
class Rule:
    """One verdict."""

    level: str
    bound: str
    title: str
    when: tuple[Condition, ...]
    text: str
    advice: tuple[Advice, ...]


@define(frozen=True)
class Rules:
    """The whole file."""

    rules: tuple[Rule, ...]
    thresholds: dict[str, float]
    confidence: dict[str, dict[str, float]]
    needs: dict[str, dict[str, str]]
    kernel_fixes: dict[str, str]
    named_kernels: dict[str, Any]
    fixes_of: dict[str, list[str]]  # by verdict, how the ids of the fixes begin that are against it
    token_step: str
    commands: dict[str, Any]


@define(frozen=True)
class CounterQuality:
    """How good the counters behind a verdict are."""

    coverage: float | None = None
    spread: float | None = None
    reasons: list[str] = Factory(list)


@cache
def verdict_rules() -> Rules:
    raw = read_toml(__package__, "rules.toml")

    def conditions(of: dict[str, Any]) -> tuple[Condition, ...]:
        return tuple(Condition(**condition) for condition in of.get("when", ()))

    def rule(of: dict[str, Any]) -> Rule:
        advice = tuple(Advice(one["text"], conditions(one)) for one in of["advice"])
        return Rule(**{**of, "when": conditions(of), "advice": advice})

    return Rules(tuple(map(rule, raw.pop("rule"))), token_step=raw.pop("tokens")["step"], **raw)


def evaluate(level: str, facts: Facts, quality: CounterQuality | None = None) -> Verdict | None:
    """The first rule of the level that holds; None where none does. Rules with unknown facts cannot hold."""
    missing = []
    for rule in verdict_rules().rules:
        if rule.level != level:
            continue
        values = [facts.numbers.get(c.fact) for c in rule.when]
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            missing.append(rule.title)
            continue
        if all(c.holds(v) for c, v in zip(rule.when, known, strict=True)):
            return _verdict(rule, known, facts, quality or CounterQuality(), missing)
    return None


def cannot_tell(fact: str, facts: Facts) -> Verdict:
    """A verdict that says why there is none, and what to run."""
    need = verdict_rules().needs[fact]
    because, run = (need[part].format_map(facts.words) for part in ("because", "run"))
    return Verdict(
        bound=UNKNOWN, title="cannot tell", text=f"Cannot tell, because {because}.", missing=[because], next_step=run
    )


def _verdict(rule: Rule, values: list[float], facts: Facts, quality: CounterQuality, missing: list[str]) -> Verdict:
    evidence = [
        Evidence(
            text=f"{_said(c.fact, facts, value)} ({'at least' if c.at_least is not None else 'at most'} {_plain(c.fact, c.threshold, facts)})",
            fact=c.fact,
            value=value,
            threshold=c.threshold,
        )
        for c, value in zip(rule.when, values, strict=True)
    ]
    margins = [
        (c.margin(v), f"{_said(c.fact, facts, v)}, where the threshold is {_plain(c.fact, c.threshold, facts)}")
        for c, v in zip(rule.when, values, strict=True)
    ]
    margin, nearest = min(margins, default=(1.0, ""))
    confidence, reasons = _confidence(margin, nearest, quality)
    advice = next(a for a in rule.advice if _applies(a, facts))
    return Verdict(
        bound=rule.bound,
        title=rule.title,
        text=rule.text.format_map(facts.words),
        confidence=confidence,
        confidence_reasons=reasons,
        evidence=evidence,
        advice=advice.text.format_map(facts.words),
        missing=[f"whether it is {title}" for title in missing],
    )


def _applies(advice: Advice, facts: Facts) -> bool:
    values = [facts.numbers.get(c.fact) for c in advice.when]
    return all(v is not None and c.holds(v) for c, v in zip(advice.when, values, strict=True))


def _confidence(margin: float, nearest: str, quality: CounterQuality) -> tuple[str, list[str]]:
    """How sure a verdict is, and why; what makes it unsure comes last. `nearest`: the value nearest to its threshold."""
    coverage, spread, levels = quality.coverage, quality.spread, verdict_rules().confidence
    *_, needed = levels.values()  # for anything above "low"
    close = margin < needed["margin"]
    text = f"{margin:.1f} times the threshold" if margin < 100 else "far beyond the threshold"
    reasons = [(f"close to the threshold ({nearest})" if close and nearest else text, close)]
    if coverage is not None:
        reasons.append((f"counters cover {100 * coverage:.0f} % of the kernel time", coverage < needed["coverage"]))
    if spread is not None:
        reasons.append((f"counters ± {100 * spread:.1f} %", spread > needed["spread"]))
    reasons += [(reason, False) for reason in quality.reasons]
    told = [text for text, _ in sorted(reasons, key=lambda reason: reason[1])]
    for level, least in levels.items():
        if (
            margin >= least["margin"]
            and (coverage is None or coverage >= least["coverage"])
            and (spread is None or spread <= least["spread"])
        ):
            return level, told
    return "low", told


def _said(fact: str, facts: Facts, value: float) -> str:
    return f"{fact.removesuffix('_us').replace('_', ' ')} {_plain(fact, value, facts)}"


def _plain(fact: str, value: float, facts: Facts) -> str:
    """A share in per cent, microseconds with their unit, other numbers as they are."""
    if fact.endswith("_us"):
        return f"{value:.3g} µs"
    return f"{100 * value:.1f} %" if fact.endswith("_share") or fact in facts.words else f"{value:.3g}"

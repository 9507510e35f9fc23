"""Where an option stands in `--help`: what most people need first, what only experts need last."""

from __future__ import annotations

COMMON, MEASURE, REPORT, EXPERT = GROUPS = ("common", "what to measure", "what to report", "expert")

# By flag; one that is not here is common.
_BY_GROUP = {
    MEASURE: """
        --annotate-depth --no-measure --instances --window --window-after --load --concurrency
        --prompt-tokens --output-tokens --url --load-model --keep --load-command --no-counters --level --launches
        --metrics --kernel --launch --sample --timeline --no-traffic --no-lines --verify --output --batch-option
        --device --no-try
    """,
    REPORT: """
        --format --exclude --kernel-include --kernel-exclude --no-aggregate --top --fail-on --min-change
        --exact --budgets --save-baseline --accept --strict
    """,
    EXPERT: """
        --replay-mode --no-windows --run-to-end --no-fallback --max-size --timeout --show-command --attribution
        --hardware --calibration --force --learn --in-place
    """,
}
_GROUP = {flag: group for group, flags in _BY_GROUP.items() for flag in flags.split()}


def group_of(flag: str) -> str:
    return _GROUP.get(flag, COMMON)


def grouped_flags() -> set[str]:
    """All flags that this file names."""
    return set(_GROUP)

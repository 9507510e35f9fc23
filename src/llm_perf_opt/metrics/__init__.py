"""What ncu can count on which GPU, as data: one catalogue of counters, levels and their costs, and checks of names."""

from llm_perf_opt.metrics.catalogue import Counter
from llm_perf_opt.metrics.data_types import TypesInUse, types_in_use, types_of_name
from llm_perf_opt.metrics.groups import (
    DEFAULT_LEVEL,
    LEVELS,
    MetricGroups,
    PassCount,
    all_groups,
    checked_level,
    groups_for,
    groups_of_chip,
    lower_levels,
)
from llm_perf_opt.metrics.names import parse_query_metrics, refuse_unknown, unknown_metrics

__all__ = [
    "DEFAULT_LEVEL",
    "LEVELS",
    "Counter",
    "MetricGroups",
    "PassCount",
    "TypesInUse",
    "all_groups",
    "checked_level",
    "groups_for",
    "groups_of_chip",
    "lower_levels",
    "parse_query_metrics",
    "refuse_unknown",
    "types_in_use",
    "types_of_name",
    "unknown_metrics",
]

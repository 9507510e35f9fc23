"""What analysis reads from files of this package: rules, families of kernels, GPUs. Each is read once a process.

Together it takes as long as a few hundred thousand kernels. While another process reads the recording, there is nothing
else to do: so it is done then.
"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.all_rules import fix_words
from llm_perf_opt.analysis.verdicts.idle_causes import idle_words
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.data_types import types_of_name
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.metrics.hardware.data import hardware_data
from llm_perf_opt.metrics.host_calls import call_kind


def read_tables() -> None:
    for read in (verdict_rules, fix_words, idle_words, hardware_data):
        read()
    for ask in (family_of, types_of_name, call_kind):
        ask("")
    groups_for(None)

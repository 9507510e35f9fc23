"""All that several ranks of a job say together, from their collectives, their steps and their scopes."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.analysis.collective_use import collective_use
from llm_perf_opt.analysis.imbalance import imbalances, kinds_of_calls, send_to_one_another
from llm_perf_opt.analysis.odd_collectives import odd_in
from llm_perf_opt.analysis.rank_steps import OfRank, rank_steps
from llm_perf_opt.analysis.ranks import CommonTimes, RankCalls, Skew, common_times, compare_ranks, ranks_not_given
from llm_perf_opt.analysis.verdicts.communication_costs import OddCollective
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions.model import Scope
from llm_perf_opt.regions.rank_skew import CollectiveUse, Imbalance, RankSkew, RankSteps
from llm_perf_opt.regions.table import RegionTable


@define(eq=False)
class RankComparison:
    """Of a job; of one rank alone, only its collectives."""

    skew: RankSkew | None = None
    steps: RankSteps | None = None
    collectives: list[CollectiveUse] = Factory(list)
    imbalance: list[Imbalance] = Factory(list)
    common: CommonTimes = Factory(CommonTimes)
    diagnostics: list[Diagnosis] = Factory(list)  # why ranks are not compared
    odd: dict[str, OddCollective] = Factory(dict)  # of one rank alone, by region

    @staticmethod
    def of(
        calls: Sequence[RankCalls], steps: Sequence[tuple[int, OfRank]], scopes: Sequence[Scope], table: RegionTable
    ) -> RankComparison:
        """`table`: of all ranks; regions of all scopes get the times of the slowest rank."""
        kinds = kinds_of_calls(calls, table)
        compared_calls = compare_ranks(calls, kinds)
        skew, said = (compared_calls, []) if isinstance(compared_calls, Skew) else (None, compared_calls)
        compared = rank_steps(steps, skew, scopes, table, in_turn=send_to_one_another(kinds))
        return RankComparison(
            skew.found if skew is not None else None,
            compared,
            collective_use(calls, kinds, skew, table),
            imbalances(calls, kinds, compared, table),
            common_times(scopes, skew, table, {row.label: row.why for row in (compared.ranks if compared else ())}),
            said + ranks_not_given(calls),
            odd_in(calls[0], table) if len(calls) == 1 else {},
        )

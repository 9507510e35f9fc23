"""Communication of a region: what of it is exposed, what is waiting for a late rank, and where one rank cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import Factory, define, evolve

from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.rules import Facts, cannot_tell
from llm_perf_opt.metrics.collective_kinds import EXCHANGE, kind_of
from llm_perf_opt.metrics.families import COLLECTIVE
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.model import NCUProfileRegion, TimeSplit, Verdict

_KIND = "communication"
_ODD_SHARE = 0.5  # of the exposed time, from which on one collective decides the verdict


@define(frozen=True)
class RankWaiting:
    """How long a region waits in collectives for ranks that come later."""

    rank: str  # who waits: of all ranks together, the one that takes longest
    late: str  # whom the ranks wait for most; empty: by turns for one another
    waiting: Quantity
    why: str = ""  # what the late one does differently; empty: nobody knows


@define(frozen=True)
class UnevenStages:
    """One stage of a pipeline, or one of several ranks with the same work, computes longer; the others wait for it."""

    region: str  # key of the steps
    most: str  # the rank that computes longest
    most_ns: float  # that it computes in a step
    mean_ns: float  # that the stages compute on average: what each would, if they were even; that other ranks compute
    why: str = ""  # what the rank does differently; empty: of a pipeline

    @property
    def extra_ns(self) -> float:
        return self.most_ns - self.mean_ns


@define(frozen=True)
class OddCollective:
    """Collectives that take many times as long as others of their kernel with messages of their size."""

    what: str  # "an all-reduce of 101 ms" | "an all-reduce of 62 ms, 4 times"
    excess: Quantity
    usual: Quantity
    shortest: Quantity  # of those that stand out


def odd_collectives(what: str, times: Sequence[float], usual_ns: float) -> OddCollective:
    """`times`: of those that stand out. Whether they transfer or wait, the other ranks know."""
    calls = len(times)
    kind, each = kind_of(what), sum(times) / calls
    article, often = "a" if kind[0] not in "aeo" else "an", f", {calls} times" if calls > 1 else ""
    return OddCollective(
        f"{article} {kind} of {shown(nanoseconds(each))}{often}",
        nanoseconds(sum(times) - calls * usual_ns),
        nanoseconds(usual_ns),
        nanoseconds(min(times)),
    )


@define(frozen=True)
class Communication:
    """What is known of a region's communication."""

    exposed: Quantity
    skew: RankWaiting | None  # None: one rank, or nobody waits
    odd: OddCollective | None  # only where there is one rank
    exchanged: bool = (
        False  # messages from rank to rank, most of it: how long they wait for their other end is not known
    )
    stages: UnevenStages | None = None  # of the steps, where one stage or rank computes longer
    late_stage: Quantity = Factory(lambda: nanoseconds(0))  # what the instances take longer because of that

    @staticmethod
    def of(
        region: NCUProfileRegion,
        split: TimeSplit,
        skew: RankWaiting | None,
        stages: UnevenStages | None = None,
        odd: OddCollective | None = None,
    ) -> Communication:
        exposed = split.exposed_collectives or nanoseconds(0)
        if stages is not None and stages.why and skew is not None and skew.rank != stages.most:
            stages = None  # seen from a rank that waits
        if stages is not None:
            late = nanoseconds(stages.extra_ns * (region.instances or 1))
            return Communication(exposed, None, None, _exchanged(region), stages, late)
        if skew is not None:
            return Communication(exposed, evolve(skew, waiting=min(skew.waiting, exposed)), None)
        longest = max((record.max_ms or 0.0 for record in region.kernels if record.family == COLLECTIVE), default=0.0)
        decides = odd is not None and exposed.value > 0 and odd.excess > exposed * _ODD_SHARE
        if odd is not None and longest * 1e6 < odd.shortest.of("ns"):
            decides = False  # they are in the warm-up, which `region` leaves out
        return Communication(exposed, None, odd if decides else None, _exchanged(region))

    def add_facts(self, facts: Facts, now: Quantity | None) -> None:
        time = now.of("ns") if now else 0.0
        late = self.late_stage.of("ns") / time if self.stages and time else None
        facts.share("late_stage_share", late if self.stages and not self.stages.why else None)
        facts.share("busier_rank_share", late if self.stages and self.stages.why else None)
        if self.stages:
            facts.words |= {"late_rank": self.stages.most, "late_why": self.stages.why}
            facts.amount("late_time", nanoseconds(self.stages.most_ns))
            facts.amount("mean_time", nanoseconds(self.stages.mean_ns))
        facts.share("skew_share", self.skew.waiting.of("ns") / time if self.skew and time else None)
        if self.skew:
            why = self.skew.why or "more work (imbalance), a slower host, or a later start"
            facts.words |= {"late_rank": self.skew.late or "any of them", "late_why": why}
            facts.words["waiting_rank"] = self.skew.rank
            facts.words["late_words"] = f"mostly for {self.skew.late}" if self.skew.late else "by turns for all"
            facts.numbers["late_by_turns"] = 0 if self.skew.late else 1
            facts.amount("rank_waiting", self.skew.waiting)
            transfer = self.exposed - self.skew.waiting
            known = f"; the exposed transfers themselves take {shown(transfer)}" if transfer.value > 0 else ""
            facts.words["transfer_words"] = known  # what is hidden may be part of the waiting

    def doubted(self, verdict: Verdict, action: Callable[[str], str]) -> Verdict:
        """One rank does not know whether a long collective transfers, or waits for another rank.

        `action`: what to do about a rule.
        """
        if self.odd is None or verdict.bound != "communication":
            return verdict
        doubt = cannot_tell("other_ranks", Facts(words={"odd": self.odd.what, "usual": shown(self.odd.usual)}))
        return evolve(
            verdict,
            title=f"unsure: one rank, {self.odd.what}",
            text=f"{verdict.text} {doubt.text}",
            confidence="low",
            confidence_reasons=[*verdict.confidence_reasons, *doubt.missing],
            missing=[*verdict.missing, *doubt.missing],
            next_step=doubt.next_step,
            advice=action("comm.skew.unsure"),
        )

    def found(self, now: Quantity) -> Iterator[Found]:
        """What can be won: waiting for a late rank, and the exposed rest. Together no more than is exposed."""
        waiting = nanoseconds(0)
        if self.stages is not None:
            late = min(self.late_stage, now)
            waiting = min(late, self.exposed) if not self.stages.why else waiting  # the late one itself does not wait
            texts = "comm.skew.busier" if self.stages.why else "comm.skew.stages"
            yield Found("comm.skew", _KIND, late, late, family=COLLECTIVE, texts=texts)
        elif self.skew is not None:
            waiting = self.skew.waiting
            texts = "comm.skew.turns" if not self.skew.late else "comm.skew.known" if self.skew.why else ""
            yield Found("comm.skew", _KIND, waiting, waiting, family=COLLECTIVE, texts=texts)
        elif self.odd is not None:
            waiting = min(self.odd.excess, self.exposed)
            words = {"odd": self.odd.what, "usual": shown(self.odd.usual)}
            yield Found("comm.skew", _KIND, waiting, waiting, COLLECTIVE, words, texts="comm.skew.unsure")
        exposed = min(self.exposed, now) - waiting
        if exposed.value > 0:
            texts = "comm.exposed.messages" if self.exchanged else ""
            yield Found("comm.exposed", _KIND, exposed, exposed, family=COLLECTIVE, texts=texts)


def _exchanged(region: NCUProfileRegion) -> bool:
    times = [(record.total_ms or 0.0, record.kernel_name) for record in region.kernels if record.family == COLLECTIVE]
    messages = sum(time for time, name in times if kind_of(name) == EXCHANGE)
    return 2 * messages > sum(time for time, _ in times)

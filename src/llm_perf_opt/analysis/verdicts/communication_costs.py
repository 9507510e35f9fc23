"""Communication of a region: what of it is exposed, what is waiting for a late rank, and where one rank cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import Factory, define, evolve

from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.rules import Facts, cannot_tell
from llm_perf_opt.metrics.collective_kinds import EXCHANGE, kind_of
from llm_perf_opt.metrics.families import COLLECTIVE
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.model import NCUProfileRegion, TimeSplit, Verdict

_KIND = "communication"
_ODD = 10.0  # times as long as the others of its kind
_ODD_SHARE = 0.5  # of the exposed time, from which on one collective decides the verdict
_FEWEST = 3  # collectives of a kind of which one can be said to be odd


@define(frozen=True)
class RankWaiting:
    """How long a region waits in collectives for ranks that come later."""

    rank: str  # who waits: of all ranks together, the one that takes longest
    late: str  # whom the ranks wait for most
    waiting: Quantity
    why: str = ""  # what the late one does differently; empty: nobody knows


@define(frozen=True)
class UnevenStages:
    """A pipeline of which one stage computes longer than the others, which wait for it in every step."""

    region: str  # key of the steps
    most: str  # the rank that computes longest
    most_ns: float  # that it computes in a step
    mean_ns: float  # that the stages compute on average: what each would, if they were even

    @property
    def extra_ns(self) -> float:
        return self.most_ns - self.mean_ns


@define(frozen=True)
class OddCollective:
    """One collective that takes many times as long as the others of its kernel."""

    what: str  # "an all-reduce of 101 ms"
    excess: Quantity
    usual: Quantity


def odd_collective(region: NCUProfileRegion) -> OddCollective | None:
    """The longest one, where it stands out: whether it transfers or waits, the other ranks know."""
    found = None
    for record in region.kernels:
        if record.family == COLLECTIVE and record.calls >= _FEWEST and record.total_ms and record.max_ms:
            usual = (record.total_ms - record.max_ms) / (record.calls - 1)
            if record.max_ms > _ODD * usual and (found is None or record.max_ms > found[0]):
                found = record.max_ms, usual, record.kernel_name
    if found is None:
        return None
    longest, usual, name = found
    kind = kind_of(name)
    article = "a" if kind[0] not in "aeo" else "an"
    ms = Quantity(1e6, "ns")
    return OddCollective(f"{article} {kind} of {shown(ms * longest)}", ms * (longest - usual), ms * usual)


@define(frozen=True)
class Communication:
    """What is known of a region's communication."""

    exposed: Quantity
    skew: RankWaiting | None  # None: one rank, or nobody waits
    odd: OddCollective | None  # only where there is one rank
    exchanged: bool = (
        False  # messages from rank to rank, most of it: how long they wait for their other end is not known
    )

    stages: UnevenStages | None = None  # only of the steps of a pipeline with a busier stage
    late_stage: Quantity = Factory(lambda: nanoseconds(0))  # what the instances take longer because of that

    @staticmethod
    def of(
        region: NCUProfileRegion, split: TimeSplit, skew: RankWaiting | None, stages: UnevenStages | None = None
    ) -> Communication:
        exposed = split.exposed_collectives or nanoseconds(0)
        if stages is not None:
            late = nanoseconds(stages.extra_ns * (region.instances or 1))
            return Communication(exposed, None, None, _exchanged(region), stages, late)
        if skew is not None:
            return Communication(exposed, evolve(skew, waiting=min(skew.waiting, exposed)), None)
        odd = odd_collective(region) if exposed.value else None
        return Communication(
            exposed, None, odd if odd and odd.excess > exposed * _ODD_SHARE else None, _exchanged(region)
        )

    def add_facts(self, facts: Facts, now: Quantity | None) -> None:
        time = now.of("ns") if now else 0.0
        facts.share("late_stage_share", self.late_stage.of("ns") / time if self.stages and time else None)
        if self.stages:
            facts.words["late_rank"] = self.stages.most
            facts.amount("late_time", nanoseconds(self.stages.most_ns))
            facts.amount("mean_time", nanoseconds(self.stages.mean_ns))
        facts.share("skew_share", self.skew.waiting.of("ns") / time if self.skew and time else None)
        if self.skew:
            why = self.skew.why or "more work (imbalance), a slower host, or a later start"
            facts.words |= {"late_rank": self.skew.late, "waiting_rank": self.skew.rank, "late_why": why}
            facts.amount("rank_waiting", self.skew.waiting)
            facts.amount("transfer", self.exposed - self.skew.waiting)

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
            waiting = min(late, self.exposed)
            yield Found("comm.skew", _KIND, late, late, family=COLLECTIVE, texts="comm.skew.stages")
        elif self.skew is not None:
            waiting = self.skew.waiting
            texts = "comm.skew.known" if self.skew.why else ""
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

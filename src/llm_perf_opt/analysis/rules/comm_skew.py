"""Ranks wait for a late one"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.collectives import collectives_found
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found

_WAITS = ("host.unknown", "host.wait")  # of a stage that has nothing to do yet


def _find(of: Evaluated) -> Iterator[Found]:
    for found in collectives_found("comm.skew")(of):
        stages = of.communication.stages
        if stages is not None and not stages.why:  # beyond its messages, a stage waits with an idle GPU
            waits = of.free.take_idle(_WAITS, max((found.time - of.communication.exposed).of("ns"), 0.0))
            found = evolve(found, idle=waits)
        yield found


RULE = Rule(
    id="comm.skew",
    title="Ranks wait for a late one",
    costs="A collective ends when the last rank has joined it; all others wait. A pipeline is as fast as its slowest stage.",
    seen="The same collective takes long on all ranks but one; if only one rank was recorded, one collective takes far longer than others of its kind. Or, among ranks that send to one another, one computes for longer in each step than the others.",
    words=Words(
        because="{waiting_rank} waits {time} of {now} for later ranks, mostly for {late_rank}",
        action="find out what {late_rank} does before it joins the collective: more work (imbalance), a slower host, or a later start",
        looks=True,
    ),
    find=_find,
    gain="The time that ranks spend in collectives waiting for the last one, from half of it to all; for a pipeline, the time by which its slowest stage exceeds the average.",
    before="batch = texts[rank::world]  # one rank has the long ones",
    after="batch = balanced(texts)[rank]  # the same number of tokens for each rank",
    unless="The late rank has work that only one can do, such as writing a checkpoint, and does so rarely.",
    variants={
        "known": Words(
            because="{waiting_rank} waits {time} of {now} for later ranks, mostly for {late_rank}",
            action="see why {late_rank} joins collectives late: {late_why}",
            looks=True,
        ),
        "unsure": Words(
            because="{odd}, while {usual} are usual: perhaps it waits for another rank",
            action="give the recordings of the other ranks too: they show which rank is late",
            looks=True,
        ),
        "stages": Words(
            because="{late_rank} computes for {late_time} of each step, the stages of the pipeline for {mean_time} on average: the others wait for it",
            action="give {late_rank} less of the model, such as fewer layers, until all stages of the pipeline take equally long",
        ),
        "turns": Words(
            because="{waiting_rank} waits {time} of {now} for later ranks, by turns for all",
            action="give all ranks the same work in every step (batches of the same number of tokens), and look for pauses of the host that come at other times on each (garbage collection, input)",
            looks=True,
        ),
        "busier": Words(
            because="{late_rank} computes {late_time} of each step, the others {mean_time}, and wait for it; {late_why}",
            action="find out why {late_rank} computes longer: more work or longer inputs than the others, or a GPU that is slowed down (nvidia-smi -q -d PERFORMANCE)",
            looks=True,
        ),
    },
)

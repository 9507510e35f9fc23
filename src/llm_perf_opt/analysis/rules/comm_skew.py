"""Ranks wait for a late one"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.collectives import collectives_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="comm.skew",
    title="Ranks wait for a late one",
    costs="A collective ends when the last rank has joined it; all others wait.",
    seen="The same collective takes long on all ranks but one; if only one rank was recorded, one collective takes far longer than others of its kind.",
    words=Words(
        because="{waiting_rank} waits {time} of {now} for later ranks, most for {late_rank}",
        action="find out what {late_rank} does before it joins the collective: more work (imbalance), a slower host, or a later start",
        looks=True,
    ),
    find=collectives_found("comm.skew"),
    gain="The time that ranks spend in collectives waiting for the last one, from half of it to all.",
    before="batch = texts[rank::world]  # one rank has the long ones",
    after="batch = balanced(texts)[rank]  # the same number of tokens for each rank",
    unless="The late rank has work that only one can do, as writing a checkpoint, and does it seldom.",
    variants={
        "unsure": Words(
            because="{odd}, {usual} are usual: perhaps it waits for another rank",
            action="give the recordings of the other ranks too: they tell which rank is late",
            looks=True,
        )
    },
)

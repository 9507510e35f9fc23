"""Advice in the words of the runners: keys that exist, instead of options they do not have."""

from __future__ import annotations

import re

import pytest

from llm_perf_opt.nsight.messages import RULES, STATES
from llm_perf_opt.options import KEYS
from llm_perf_opt.options.wording import in_keys, settings_by_flag


@pytest.mark.parametrize(
    ("advice", "told"),
    [
        ("--budget 60s lets more be sampled.", "pipeline.ncu.budget=60s lets more be sampled."),
        ("More launches of each kernel (--launches).", "More launches of each kernel (pipeline.ncu.launches)."),
        ("Use `--replay-mode app-range`.", "Use `pipeline.ncu.ncu_cli.replay_mode=app-range`."),
        ("`-s none -t cuda,nvtx`", "`pipeline.nsys.sample=none pipeline.nsys.trace=cuda,nvtx`"),
        ("Add `--nvtx-include 'NAME/'`.", "Add `'pipeline.ncu.ncu_cli.nvtx.include=\"ncu:NAME/\"'`."),
        ("Choose another with --out (the runners: hydra.run.dir).", "Choose another with hydra.run.dir."),
        ("Give --hardware bandwidth=4.8TB/s", "Give hardware.bandwidth=4.8TB/s"),
        # Commands for a shell, and options nobody has a key for, stay what they are.
        ("Read it: llm-perf report 'a b' --out ANOTHER", "Read it: llm-perf report 'a b' --out ANOTHER"),
        ("Pause it with `dcgmi profile --pause`.", "Pause it with `dcgmi profile --pause`."),
        ("See `ncu --list-sets`.", "See `ncu --list-sets`."),
        ("`--profile-from-start off` hides all.", "`--profile-from-start off` hides all."),
    ],
)
def test_options_become_keys(advice: str, told: str) -> None:
    assert in_keys(advice) == told


def test_every_key_that_is_named_exists() -> None:
    known = {*KEYS, "hydra.run.dir"}
    for keys in settings_by_flag().values():
        for key in keys.split(" or "):
            assert key.partition("=")[0] in known
    for rule in (*RULES, *STATES.values()):
        for named in re.findall(r"\b(?:pipeline|run|hydra)(?:\.\w+)+", in_keys(f"{rule.cause} {rule.fix}")):
            assert named in known, rule.code


def test_no_advice_of_a_run_names_an_option_of_the_command_line() -> None:
    """Of `llm-perf profile`: a runner has none of them."""
    own = re.compile(
        r"(?<![\w-])--(?:timeout|include|exclude|max-size|budget|launches|level|sample|out|kernel)(?![\w-])"
    )
    for rule in (*RULES, *STATES.values()):
        assert not own.search(in_keys(f"{rule.cause} {rule.fix}")), rule.code

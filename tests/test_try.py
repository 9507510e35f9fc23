"""`llm-perf try`: levers are read without being run, outputs are compared in units of noise, and results come first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest

from conftest import RECORDINGS, report
from fake_tools import tools as tools
from llm_perf_opt.api.tried import with_tried
from llm_perf_opt.cli.main import main
from llm_perf_opt.comparing.comparison import Comparison, RegionComparison
from llm_perf_opt.errors import UserError
from llm_perf_opt.readers.measured import KIND
from llm_perf_opt.regions.columns import UNKNOWN_HERE, OnlyOnce, Process, Ranges, Timeline, Work
from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.report.html import render_html
from llm_perf_opt.report.markdown import render_markdown
from llm_perf_opt.report.view import view_of
from llm_perf_opt.request import profile_request
from llm_perf_opt.trying import loop_steps, turns
from llm_perf_opt.trying.attempts import REFUSED, Attempt, Trial
from llm_perf_opt.trying.batch_size import batch_levers
from llm_perf_opt.trying.choice import choose_levers, lacking, predicted_gain
from llm_perf_opt.trying.compiling import spent_ns, without_compiling
from llm_perf_opt.trying.economy import repeats, step_to_look_at, worth_timing
from llm_perf_opt.trying.files_of_trial import render_trial
from llm_perf_opt.trying.levers import Lever, all_levers, named_levers
from llm_perf_opt.trying.loop_steps import with_steps
from llm_perf_opt.trying.output_comparison import DIFFERENT, NOT_COMPARED, SAME, WITHIN_NOISE, Agreement, Reference
from llm_perf_opt.trying.process_notes import Computed, ProcessNotes, read_notes, use_text
from llm_perf_opt.trying.program_runs import ProgramRuns, Run
from llm_perf_opt.trying.turns import Wanted
from llm_perf_opt.trying.words import three_sentences
from printed import check_printed

OUTPUTS = ("", "outputs")
OWN = '''"""Scales what the model gives."""
TITLE = "scaled"
CHANGES = "everything"
def apply(program): {apply}
def evidence(program): return {evidence}
'''


# -- levers --------------------------------------------------------------------------------------------------


def test_every_lever_says_what_it_does_what_it_may_change_and_what_to_write() -> None:
    from llm_perf_opt.analysis.rules.all_rules import RULES

    known = {rule.id for rule in RULES}
    for lever in all_levers().values():
        assert lever.about.endswith("."), lever.name
        assert lever.changes, lever.name
        assert lever.patch, lever.name
        assert lever.needs, lever.name
        assert set(lever.rules) <= known, lever.name
        assert set(lever.excludes) <= set(all_levers()), lever.name


def test_a_lever_of_ones_own_is_read_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "my_lever.py"
    file.write_text("raise SystemExit\n" + OWN.format(apply="...", evidence="True, ''"))
    (lever,) = named_levers([str(file)])
    assert (lever.name, lever.title, lever.own) == ("my-lever", "scaled", True)
    file.write_text("def apply(program): ...")
    with pytest.raises(UserError, match="no function evidence"):
        named_levers([str(file)])
    with pytest.raises(UserError, match="did you mean compile"):
        named_levers(["compil"])


def test_levers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}\n" in printed for name in all_levers())
    assert main(["try", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["levers"]) == len(all_levers())


def fix(rule: str, share: float, stage: str = "LLM@decode") -> Fix:
    return Fix(rule, stage, gain_ns=share * 1e6, gain_share=share, action="", because="")


def test_levers_are_those_that_fixes_ask_for_and_the_program_can_use() -> None:
    notes = ProcessNotes(
        counts={"calls": 9, "calls outside training": 9, "generate": 1, "cuda": 1, "float32 models": 1}
    )
    chosen = [lever.name for lever in choose_levers([fix("gemm.fp32", 0.5), fix("cache.concat", 0.2)], notes)]
    assert set(chosen[:3]) == {"tf32", "bf16-autocast", "fp16-autocast"}
    assert chosen[3:] == ["cuda-graph", "static-cache"]
    # Without fixes: what fits, and what changes the precision only if it is named.
    general = [lever.name for lever in choose_levers([], notes)]
    assert "static-cache" in general
    assert "tf32" not in general
    assert "fused-optimizer" not in general
    assert "compile" not in general  # the cache of generate() grows: it would be compiled again and again


def test_of_those_that_promise_as_much_the_quickest_is_first() -> None:
    notes = ProcessNotes(counts={"calls": 9, "calls outside training": 9, "cuda": 1})
    fixes = [fix("launch.graph", 0.71), fix("fuse.elementwise", 0.02)]  # torch.compile stands for both
    chosen = [lever.name for lever in choose_levers(fixes, notes)]
    assert chosen[:2] == ["cuda-graph", "compile-reduce-overhead"]
    assert choose_levers([fix("fuse.elementwise", 0.5)], notes)[0].name == "compile"


def test_a_budget_that_is_too_short_for_compiling_goes_to_other_levers(monkeypatch: pytest.MonkeyPatch) -> None:
    levers, ran = all_levers(), []

    class Session(turns._Session):
        def _run_once(self, attempt: Attempt) -> bool:
            ran.append(attempt.name)
            return False

    def tried(*names: str, budget_s: float | None) -> list[str]:
        wanted = Wanted([levers[name] for name in names], budget_s=budget_s)
        runs = SimpleNamespace(repeat=(0, 0))
        session = Session(runs, wanted, Trial([]))  # type: ignore[arg-type]
        session.unchanged = [Run(Path(), [], ProcessNotes(), 5.0)]
        attempts = [Attempt([lever]) for lever in wanted.levers]
        ran.clear()
        session._try(attempts)
        return [attempt.reason for attempt in attempts]

    assert tried("compile", "fused-optimizer", budget_s=None) == ["", ""]
    assert ran == ["compile", "fused-optimizer"]
    assert tried("compile", "fused-optimizer", budget_s=30.0) == ["the budget was spent", ""]
    assert ran == ["fused-optimizer"]
    tried("compile-max-autotune", "compile", budget_s=1.0)  # one is tried anyway: until one ran, the quickest first
    assert ran == ["compile", "compile-max-autotune"]


def test_a_lever_far_behind_one_that_excludes_it_is_not_timed_again() -> None:
    levers = all_levers()

    def attempt(name: str, after: float) -> Attempt:
        compared = Comparison("a", "b", "better", [], [], [region("LLM@step", 100e6, after, 10)])
        return Attempt([levers[name]], applied=True, verdict="better", comparison=compared)

    graph, static, slow = attempt("cuda-graph", 20e6), attempt("static-cache", 50e6), attempt("gc-off", 150e6)
    assert worth_timing([static, graph, slow]) == [graph]
    assert "CUDA graph" in static.reason
    assert slow.verdict == "worse"
    near = attempt("static-cache", 21e6)
    assert worth_timing([graph, near]) == [graph, near]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, (0, 0)),
        ({"generate": 1, "ms in generate": 2000}, (1, 3)),
        ({"generate": 3, "ms in generate": 6000}, (3, 1)),
        ({"generate": 1, "ms in generate": 90_000}, (1, 1)),
        ({"generate": 9, "ms in generate": 900}, (0, 0)),
        ({"generate": 1, "ms in generate": 2000, "generate once only": 1}, (0, 0)),  # somebody reads what it streams
    ],
)
def test_generate_is_called_until_it_is_warm(counts: dict[str, int], expected: tuple[int, int]) -> None:
    assert repeats(ProcessNotes(processes=1, counts=counts)) == expected


def test_what_may_be_slower_by_chance_is_timed_again() -> None:
    def attempt(after: float, low: float, high: float) -> Attempt:
        one = attrs.evolve(region("LLM@step", 100e6, after, 10), interval=[low, high])
        return Attempt([Lever("x", Path())], verdict="unsure", comparison=Comparison("a", "b", "unsure", [], [], [one]))

    slower, noisy = attempt(150e6, 0.4, 0.6), attempt(150e6, -0.3, 3.0)
    assert worth_timing([slower, noisy]) == [noisy]
    assert (slower.verdict, noisy.verdict) == ("worse", "unsure")
    cold = Attempt([Lever("x", Path())], verdict="worse", comparison=noisy.comparison)
    assert cold.comparison is not None
    cold.comparison.regions[0] = attrs.evolve(region("LLM@generate", 100e6, 190e6, 1), interval=None, decides=True)
    assert worth_timing([cold]) == [cold]  # one cold call of each proves nothing


def test_why_a_lever_would_change_nothing_is_said_in_words() -> None:
    lever = all_levers()["inference-mode"]
    trained = {"calls": 3, "calls in training": 3}
    assert "keeps gradients" in lacking(lever, ProcessNotes(counts={**trained, "backward": 3}))
    assert "model.eval()" in lacking(lever, ProcessNotes(counts=trained))  # nobody trains it
    needs = {need for one in all_levers().values() for need in one.needs if need != "calls"}
    for need in needs:
        assert "there are none" not in lacking(Lever("x", Path(), needs=(need,)), ProcessNotes())


def test_a_lever_that_hangs_is_stopped_some_time(tmp_path: Path) -> None:
    request = profile_request({}, ["python", "a.py"])
    runs = ProgramRuns(request, None, None, None, first=Run(tmp_path, [], ProcessNotes(), 30.0))  # type: ignore[arg-type]
    assert runs._patience([]) is None  # the program itself may take as long as it likes
    assert runs._patience([Lever("x", Path())]) == 900
    asked = attrs.evolve(request, measure=attrs.evolve(request.measure, timeout_s=5.0))
    assert ProgramRuns(asked, None, None, None)._patience([Lever("x", Path())]) == 5  # type: ignore[arg-type]


def test_a_lever_that_leaves_all_kernels_as_they_are_took_no_effect() -> None:
    def session_of(kernels: dict[str, int]) -> tuple[Any, Attempt]:
        session = turns._Session(None, Wanted(), Trial([]))  # type: ignore[arg-type]
        notes = [ProcessNotes(launches=9, kernels=found) for found in ({"gemm": 9}, kernels)]
        session.rounded, run = (Run(Path(), [], found, 1.0) for found in notes)
        attempt = Attempt([all_levers()["attention-flash"]], applied=True, evidence="torch's flags are set")
        session._run = lambda *_, **__: run  # type: ignore[method-assign]
        session.unchanged.append(run)
        return session, attempt

    session, attempt = session_of({"gemm": 9})
    assert not session._took_effect(attempt)
    assert (attempt.verdict, attempt.applied) == ("not applied", False)
    assert "the same kernels" in attempt.reason
    session, attempt = session_of({"gemm": 8, "flash_fwd": 1})
    assert session._took_effect(attempt)
    assert list(attempt.new_kernels) == ["flash_fwd"]
    assert attempt.evidence.endswith("launches of a step 9 → 9")


def test_the_step_that_is_looked_at_is_one_of_the_last() -> None:
    assert step_to_look_at(ProcessNotes(processes=1, counts={"calls": 30}), (0, 0)) == 28
    twice = ProcessNotes(processes=1, counts={"calls": 128, "generate": 2})
    assert step_to_look_at(twice, (2, 2)) == 254


def test_a_variable_that_the_user_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    notes = ProcessNotes(counts={"cuda": 1})
    assert "is set already" in lacking(all_levers()["max-connections"], notes)
    assert lacking(all_levers()["expandable-segments"], notes) == ""


def test_the_batch_size_is_where_the_user_says() -> None:
    for words in (["--bs", "8"], ["--bs=8"]):
        twice, four = batch_levers("--bs", ["python", "train.py", *words, "--lr", "8"])
        assert (twice.items, four.items) == (2, 4)
        assert "=".join(four.command[2:]).removesuffix("=--lr=8") == "--bs=32"
        assert four.command[-2:] == ("--lr", "8")
    with pytest.raises(UserError, match="no option --batch"):
        batch_levers("--batch", ["python", "train.py", "--bs", "8"])
    with pytest.raises(UserError, match="not a batch size"):
        batch_levers("--bs", ["python", "train.py", "--bs", "auto"])


# -- outputs -------------------------------------------------------------------------------------------------


def notes_of(*samples: Any, given: list[tuple[int, ...]] | None = None, gap: float | None = None) -> ProcessNotes:
    found = []
    for number, sample in enumerate(samples):
        values = np.array(sample, dtype=np.float64)
        top, gaps = ((), ()) if gap is None else ((2,), (gap,))
        size = float(np.sqrt(np.mean(np.nan_to_num(values) ** 2)))
        tokens = given[number] if given else ()
        found.append(Computed(number + 1, values.shape, "float32", values, size, tokens, top, gaps))
    return ProcessNotes(computed={OUTPUTS: found}, calls={OUTPUTS: len(found)})


BASE = [np.linspace(-1, 1, 64) + step for step in range(6)]


def moved(by: float, start: int = 0) -> list[Any]:
    random = np.random.default_rng(1)
    return [v * (1 + by * random.standard_normal(64)) if n >= start else v for n, v in enumerate(BASE)]


@pytest.mark.parametrize(
    ("new", "state"),
    [
        (BASE, SAME),
        (moved(2e-6), WITHIN_NOISE),
        (moved(1e-3), DIFFERENT),
        (moved(1e-3, start=5), DIFFERENT),
        (BASE[:4], DIFFERENT),
        ([np.full(64, np.nan), *BASE[1:]], DIFFERENT),
    ],
)
def test_outputs_are_compared_with_what_rounding_does(new: list[Any], state: str) -> None:
    reference = Reference([notes_of(*BASE), notes_of(*BASE)], notes_of(*moved(1e-6)))
    found = reference.compare(notes_of(*new))
    assert found.state == state, found
    assert found.is_refused == (state == DIFFERENT)


def test_what_differs_in_one_direction_is_no_noise() -> None:
    reference = Reference([notes_of(*BASE)], notes_of(*moved(1e-2)))
    assert reference.compare(notes_of(*moved(1.2e-2))).state == WITHIN_NOISE
    scaled = reference.compare(notes_of(*[value * 1.02 if n > 2 else value for n, value in enumerate(BASE)]))
    assert scaled.is_refused
    assert "from call 4 on" in scaled.detail
    assert "in one direction" in scaled.detail
    few = [np.array([value[0]]) for value in BASE]  # of one loss, nobody knows
    assert (
        not Reference([notes_of(*few)], notes_of(*[v * 1.01 for v in few]))
        .compare(notes_of(*[v * 1.02 for v in few]))
        .is_refused
    )


def test_where_outputs_begin_to_differ_is_said() -> None:
    reference = Reference([notes_of(*BASE), notes_of(*BASE)], notes_of(*moved(1e-6)))
    assert "from call 6 on" in reference.compare(notes_of(*moved(1e-3, start=5))).detail


def test_lower_precision_is_said_and_not_taken_for_a_mistake() -> None:
    reference = Reference([notes_of(*BASE), notes_of(*BASE)], notes_of(*moved(1e-6)))
    found = reference.compare(notes_of(*moved(3e-3)), "bfloat16")
    assert found.state == DIFFERENT
    assert not found.is_refused
    assert reference.compare(notes_of(*moved(0.3)), "bfloat16").is_refused


def test_lower_precision_grows_along_a_training_as_rounding_does() -> None:
    """On an H200, one unit in the last place of fp32 grew to 1e-5 of the loss in 20 steps, TF32 to 2 % of it."""
    still = Reference([notes_of(*BASE), notes_of(*BASE)], notes_of(*moved(1e-7)))
    chaotic = Reference([notes_of(*BASE), notes_of(*BASE)], notes_of(*moved(1e-7)[:5], *moved(1e-5)[5:]))
    new = notes_of(*moved(1e-4)[:5], *moved(2e-2)[5:])
    assert still.compare(new, "tf32").is_refused
    assert not chaotic.compare(new, "tf32").is_refused
    assert chaotic.compare(new).is_refused


def test_unchanged_runs_that_differ_cannot_be_compared_with() -> None:
    reference = Reference([notes_of(*BASE), notes_of(*moved(1.0))], None)
    found = reference.compare(notes_of(*BASE))
    assert found.state == NOT_COMPARED
    assert "seed" in found.detail
    assert Reference([ProcessNotes()], None).compare(notes_of(*BASE)).state == NOT_COMPARED


def test_a_text_may_go_another_way_after_a_near_tie_only() -> None:
    given = [(1,), (2,), (3,), (4,), (5,), (6,)]
    other = [(1,), (2,), (3,), (9,), (9,), (9,)]
    away = [*BASE[:3], *(value * 5 for value in BASE[3:])]

    def compared(gap: float) -> Agreement:
        base = notes_of(*BASE, given=given, gap=gap)
        return Reference([base, base], None).compare(notes_of(*away, given=other, gap=gap))

    tie = compared(gap=1e-7)
    assert tie.state == WITHIN_NOISE
    assert "near tie" in tie.detail
    # The same outputs, no tie, and another token all the same: somebody chooses otherwise.
    assert compared(gap=0.1).is_refused


def test_an_output_that_is_named_is_compared_by_its_numbers() -> None:
    def printed(text: str) -> ProcessNotes:
        found = ProcessNotes()
        use_text(found, text)
        return found

    reference = Reference([printed("loss 2.5"), printed("loss 2.5")], printed("loss 2.50001"))
    assert reference.compare(printed("loss 2.5")).state == SAME
    assert reference.compare(printed("loss 2.50002")).state == WITHIN_NOISE
    assert reference.compare(printed("loss 2.6")).is_refused
    assert reference.compare(printed("error 2.5")).is_refused


def test_notes_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("[")
    (tmp_path / "2.json").write_text('{"rank": "", "outputs": {"outputs": [{"call": "x"}]}, "models": []}')
    good = {
        "rank": "",
        "outputs": {},
        "models": ["M"],
        "counts": {"calls": 2},
        "places": {},
        "levers": [["a", 1, "b\n  at length"]],
    }
    (tmp_path / "3.json").write_text(json.dumps(good))
    found = read_notes(tmp_path)
    assert (found.processes, found.models, found.evidence) == (1, ["M"], {"a": (True, "b")})


# -- times ---------------------------------------------------------------------------------------------------


def test_what_is_between_stages_belongs_to_a_step() -> None:
    """A loop of a forward pass of 10 and an update of 5 in every 100."""
    start = np.array([t for step in range(8) for t in (1000 + 100 * step, 1020 + 100 * step)])
    took = np.array([10, 5] * 8)
    none = np.zeros(16, dtype=np.int32)
    ranges = Ranges(
        start=start, end=start + took, process=none, thread=none, domain=none,
        name=np.array([0, 1] * 8, dtype=np.int32), start_end=none.astype(bool), took=took,
        gpu_start=np.full(16, UNKNOWN_HERE), memory_peak=np.full(16, -1), memory_growth=np.full(16, -1),
    )  # fmt: skip
    empty = Work.empty()
    timeline = Timeline(
        source="", kind=KIND, strings=["forward", "update"], domains=[""], processes=[Process(1)], threads=[1],
        kernels=empty, copies=empty, graphs=empty, ranges=ranges,
    )  # fmt: skip
    found = with_steps(timeline).ranges
    steps = found.name == 2
    assert steps.sum() == 8
    assert found.took is not None
    assert abs(found.took[steps][:-1] - 100).max() <= 2
    assert abs(found.took[steps][-1] - 25) <= 2  # nothing of the last one stays outside of a step
    outside = found.end[~steps].max()
    assert found.end[steps].max() >= outside


def test_steps_that_a_loader_hands_over_in_turns_are_as_long_as_on_average() -> None:
    """Two workers make a batch in 30 each: every other step waits for both, the next one for nothing."""
    took = np.array([500, *([30, 0] * 20)])
    evened = loop_steps._evened_out(took)
    assert (len(evened), evened[0], evened[-1]) == (41, 500, 0)
    assert abs(evened[5:-5] - 15).max() <= 1


def compiling(spans: list[tuple[int, int]], *rows: tuple[int, int, int]) -> Timeline:
    """Ranges of one thread, name, begin and end; and when code was compiled."""
    name, start, end = (np.array(column) for column in zip(*rows, strict=True))
    none, empty = np.zeros(len(rows), dtype=np.int32), Work.empty()
    begun, done = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    once = OnlyOnce(np.zeros(len(spans), dtype=np.int32), np.zeros(len(spans), dtype=np.int32), begun, done)
    return Timeline(
        source="", kind=KIND, strings=["prefill", "decode"], domains=[""], processes=[Process(1)], threads=[1],
        kernels=empty, copies=empty, graphs=empty, only_once=once,
        ranges=Ranges(start, end, none, none, none, name.astype(np.int32), none.astype(bool), took=end - start),
    )  # fmt: skip


def test_a_call_that_was_compiled_is_no_slower_lever() -> None:
    """The only prefill is compiled, and the first of the decode steps."""
    steps = [(1, 1100 + 10 * n, 1109 + 10 * n) for n in range(10)]
    timeline = compiling([(5, 900), (800, 950), (1001, 1080)], (0, 0, 1000), (1, 1000, 1090), *steps)
    assert spent_ns(timeline.only_once) == 945 + 79
    assert without_compiling(timeline).ranges.start.tolist() == [start for _, start, _ in steps]


def test_what_is_around_compiled_calls_stays_around_the_others() -> None:
    steps = [(1, 1000 + 10 * n, 1009 + 10 * n) for n in range(10)]
    timeline = compiling([(5, 995)], (0, 0, 1100), (1, 1, 999), *steps)
    left = without_compiling(timeline).ranges
    assert left.start.tolist() == [0, *(start for _, start, _ in steps)]
    assert left.duration.tolist() == [1100 - 990, *[9] * 10]


def test_what_is_compiled_again_and_again_stays() -> None:
    rows = [(1, 100 * n, 100 * n + 90) for n in range(8)]
    timeline = compiling([(start, end - 10) for _, start, end in rows[:6]], *rows)
    assert len(without_compiling(timeline).ranges) == 8
    around = without_compiling(compiling([(start, end - 10) for _, start, end in rows[:6]], (0, 0, 2000), *rows)).ranges
    assert around.duration.tolist() == [2000, *[90] * 8]
    alone = compiling([(0, 95)], (0, 0, 100))
    assert len(without_compiling(alone).ranges) == 1  # there is nothing else to go by


def region(key: str, before: float, after: float, instances: int) -> RegionComparison:
    return RegionComparison(
        key, key, None, 0, "better", "", before, after, after / before - 1,
        [after / before - 1.01, after / before - 0.99], "runs", "undisturbed",
        (instances, instances), decides=key == "LLM@step",
    )  # fmt: skip


def test_a_prediction_is_of_the_part_that_the_fix_is_about() -> None:
    step, decode = region("LLM@step", 100e6, 25e6, 10), region("LLM@step/decode", 4e6, 1e6, 200)
    lever = Lever("a", Path(), rules=("launch.graph",))
    # 80 % of the step is decoding, and half of that is to be won.
    assert predicted_gain([lever], [fix("launch.graph", 0.5)], [step, decode], step) == pytest.approx(1 / 0.6)
    assert predicted_gain([lever], [fix("gemm.fp32", 0.5)], [step, decode], step) is None
    # Of a part of what the fix is about, where that part alone could be timed.
    inner = region("LLM@step/decode/decode_step", 1e6, 2e5, 800)
    assert predicted_gain([lever], [fix("launch.graph", 0.5)], [inner], inner) == pytest.approx(2)


# -- results -------------------------------------------------------------------------------------------------


def trial() -> Trial:
    compared = Comparison("a", "b", "better", [], [], [region("LLM@step", 100e6, 25e6, 10)])
    good = Attempt(
        [Lever("good", Path(), title="<b>good", rules=("launch.graph",), patch="model.compile()")],
        applied=True, outputs=Agreement(WITHIN_NOISE, "x"), verdict="better", comparison=compared,
        predicted_gain=3.5, warmup_s=22.0, place="a.py:3",
    )  # fmt: skip
    bad = Attempt([Lever("bad", Path(), title="bad")], outputs=Agreement(DIFFERENT, "y", float("inf")), verdict=REFUSED)
    return Trial(["python", "a.py"], [good, bad])


def test_a_cold_call_is_no_gain() -> None:
    """Of a program that calls generate() once, the lever's run has warm calls, and its own has none."""
    prefill = attrs.evolve(region("LLM@generate/prefill", 4e9, 2e7, 1), basis="nothing", decides=True)
    steps = attrs.evolve(region("LLM@generate/decode/decode_step", 17e6, 5e6, 63), decides=True)
    attempt = Attempt([Lever("a", Path())], comparison=Comparison("a", "b", "better", [], [], [prefill, steps]))
    assert attempt.stage is steps
    assert attempt.gain == pytest.approx(3.4)


def test_three_sentences_say_what_helps_what_the_outputs_say_and_what_to_write() -> None:
    first, second, third = three_sentences(trial())
    assert "100 ms → 25 ms, 4× as fast" in first
    assert "predicted 3.5×" in first
    assert "pays off after 293 calls" in first
    assert second == "Outputs: within noise (x)."
    assert third == "Write: model.compile() at a.py:3"
    assert len(three_sentences(Trial([]))) == 3


def test_what_is_not_certain_is_not_called_useless() -> None:
    lever = Lever("x", Path(), title="x")
    slower, unsure = (Attempt([lever], verdict=verdict, runs=3) for verdict in ("worse", "unsure"))
    assert three_sentences(Trial([], [slower]))[0].startswith("Nothing that was tried makes it faster")
    first, _, last = three_sentences(Trial([], [slower, unsure]))
    assert first.startswith("Cannot tell whether anything that was tried makes it faster")
    assert "--runs 6" in last
    told = Attempt([lever], verdict="unsure", runs=3, reason="the runs differ too much among themselves: add --runs 14")
    assert "--runs 14" in three_sentences(Trial([], [slower, told]))[2]


def test_the_file_keeps_to_its_schema_and_the_page_escapes_names() -> None:
    check_printed("try", json.dumps(trial().as_json(), allow_nan=False))
    page = render_trial(trial())
    assert "&lt;b&gt;good" in page
    assert "<b>good" not in page


def test_a_report_says_of_each_fix_what_became_of_it(tmp_path: Path) -> None:
    found = report(RECORDINGS / "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz")
    rule = found.answer.fixes[0].rule
    lever = {"name": "x", "rules": [rule], "verdict": "better", "gain": 4.0, "outputs": "same", "predicted_gain": 3.9}
    (tmp_path / "try.json").write_text(json.dumps({"levers": [{**lever, "verdict": "failed"}, lever]}))
    tried = with_tried(found, tmp_path).answer.fixes[0].tried
    assert tried is not None
    assert (tried["verdict"], tried["gain"], tried["predicted_gain"]) == ("better", 4.0, 3.9)
    shown = view_of(with_tried(found, tmp_path))
    said = "Tried (x): faster, 4× (predicted 3.9×), outputs same."
    assert shown.answer.fixes[0].text.endswith(said)
    assert said in render_html(shown)
    assert "Tried" in render_markdown(shown)
    (tmp_path / "try.json").write_text('{"levers": [{"rules": 1, "verdict": "better"}]}')
    assert with_tried(found, tmp_path) == found
    assert attrs.evolve(found) == with_tried(found, tmp_path / "absent")


# -- the whole of it -----------------------------------------------------------------------------------------

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x

model, x = Net().eval(), torch.randn(2, 32)
for _ in range(30):
    model(x)
"""


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_a_program_is_tried_and_what_breaks_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("net.py").write_text(PROGRAM)
    Path("drop.py").write_text(
        OWN.format(apply="program.on_model(lambda m: m.layers[3].weight.data.zero_())", evidence="True, 'dropped'")
    )
    Path("idle.py").write_text(OWN.format(apply="...", evidence="False, 'nothing to pull'"))
    before = sorted(path.name for path in tmp_path.iterdir())
    code = main(
        ["try", "--out", "run", "--runs", "1", "--levers", "inference-mode,drop.py,idle.py,tf32", "--quiet", "--",
         sys.executable, "net.py"]
    )  # fmt: skip
    assert code == 0
    found = check_printed("try", Path("run/try.json").read_text())
    levers = {lever["name"]: lever for lever in found["levers"]}
    assert levers["inference-mode"]["applied"]
    assert levers["inference-mode"]["outputs"] == "same"
    assert levers["inference-mode"]["gain"] > 0
    assert levers["inference-mode"]["place"].endswith("net.py:16")
    assert levers["drop"]["verdict"] == REFUSED
    assert levers["drop"]["before"] is None  # how fast another result comes, says nothing
    assert (levers["idle"]["verdict"], levers["idle"]["reason"]) == ("not applied", "nothing to pull")
    assert levers["tf32"]["verdict"] == "not applied"
    assert "<!-- llm-perf try -->" in Path("run/try.html").read_text()
    assert json.loads(Path("run/manifest.json").read_text())["state"] == "done"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "run"])


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_a_profile_goes_on_to_try_what_it_found(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("net.py").write_text(PROGRAM)
    Path("mine.py").write_text("RULES = 'launch.graph'\n" + OWN.format(apply="...", evidence="True, 'sure'"))
    wanted = Wanted(levers=named_levers(["mine.py"]), runs=1)  # profile has no options for them
    monkeypatch.setattr("llm_perf_opt.trying.start.wanted_of", lambda request: wanted)
    assert (
        main(
            [
                "profile",
                "--try",
                "--no-measure",
                "--no-counters",
                "--out",
                "run",
                "--quiet",
                "--",
                sys.executable,
                "net.py",
            ]
        )
        == 0
    )
    found = json.loads(Path("run/try.json").read_text())
    (lever,) = found["levers"]
    assert (lever["applied"], lever["outputs"]) == (True, "same")
    assert found["sentences"][0] in capsys.readouterr().out
    fixes = json.loads(Path("run/report.json").read_text())["answer"]["fixes"]
    assert {fix["rule"] for fix in fixes if fix["tried"]} == {"launch.graph"}, [fix["rule"] for fix in fixes]


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
def test_a_plain_generate_is_called_until_it_is_warm_and_its_tokens_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads of a tiny model wait for each other where others work, too
    program = Path(__file__).with_name("programs") / "generate_plain.py"
    words = ["--out", "run", "--runs", "1", "--levers", "static-cache,cuda-graph", "--quiet"]
    assert main(["try", *words, "--", sys.executable, str(program)]) == 0
    found = json.loads(Path("run/try.json").read_text())
    static, graph = found["levers"]
    assert static["evidence"] == "20 calls with a static cache"  # one call of generate() is made four times
    assert static["outputs"] in ("same", "within noise"), static["outputs_detail"]
    assert static["place"].endswith("generate_plain.py:17")
    assert (graph["verdict"], graph["reason"]) == ("not applied", "the program uses no GPU")
    assert "3 more times" in found["notes"][0]

"""Region patterns mean what people expect, and ncu agrees with what they are translated to.

What ncu matches is not guessed: `*-nvtx-filter-transcript.json` holds the real ncu's answer for every
expression here (made by programs/record_nvtx_filters.py), and where ncu is installed it is asked again.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import RECORDINGS, counters, examples, installed, plain_bytes, recording, report
from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.columns import Action
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter, exact_expression, parse_pattern
from llm_perf_opt.spelling import nearest

RECORD = "LLM_PERF_NCU=/path/to/ncu python tests/recordings/programs/record_nvtx_filters.py"

# The three reports whose results have stacks worth asking for.
NAMES, QWEN, DECODER = "h200-names", "qwen3-0.95b-per-launch-config", "decoder-8layers-per-launch-config"


def escaped(name: str) -> str:
    """A pattern that means this very name."""
    text = re.sub(r"([\\@/*?\[])", r"\\\1", name)
    return f"\\{text}" if text.startswith(("regex:", "ncu:")) else text


def hostile_regions() -> list[tuple[str, tuple[str, ...]]]:
    """Every push/pop region of the names report: (domain, path)."""
    stacks = [item for action in counters(NAMES).actions for item in action.push_pop.items()]
    regions = [(domain, tuple(stack[:n])) for domain, stack in stacks for n in range(1, len(stack) + 1)]
    return list(dict.fromkeys(regions))


# Where a name stands twice in a stack, ncu looks at its first place only: outer/inner/outer cannot be asked for.
INEXPRESSIBLE = ("", ("outer", "inner", "outer"))
NOT_FOUND_BY_NCU = {NAMES: ["inner/outer"]}

PATTERNS = {
    NAMES: [
        *["plain", "layer1", "layer1*", "layer?", "layer10", "LLM@*", "LLM@step", "LLM@plain", "LLM@layer*"],
        *["*", "**", "a*b", "a?b", "a[*+]b", "a[!a-z]b", "*:*", "a.b", "a+b", "a,b", "a|b", "a(b)", "a{2}", "%s"],
        *["outer", "inner", "outer/inner", "inner/outer", "outer/**", "**/inner", "outer/*", "*/inner", "@outer"],
        *["LLM@inner", "My.Dom@*", "My.Dom@plain", "MyxDom@plain", "My*@plain", "D\\@x@*", "D\\@x@plain"],
        *["d\\/e@*", "d\\/e@plain", "@plain", "*@plain", "?LM@plain", "LLM@a*", "größe", "gr*e", "层", "LLM@层"],
        *["nothing", "LLM@nothing", "Plain", "plain/", "LLM@plain/", " plain"],
        *["step", "st*", "LLM@st*", "L?M@step", "My.Dom@step", "@step", "@st*", "@layer*", "LLM@LLM\\@step"],
    ],
    QWEN: [
        *["prefill", "decode*", "layer0", "layer*", "LLM@*", "LLM@prefill", "LLM@prefill/layer0", "prefill/layer0"],
        *[
            "decode_all/layer0",
            "decode_all/**/layer0",
            "LLM@decode_all/**/layer0",
            "**/layer0",
            "prefill/**",
            "@prefill",
        ],
        *["decode_all/decode_step/layer0", "*/layer0", "*/*/layer0", "LLM@*/layer*", "decode_step/", "other"],
    ],
    DECODER: [
        *["prefill", "decode", "decode_step", "layer1", "attention", "mlp", "layer1/mlp", "prefill/**/mlp"],
        *["decode/**/attention", "LLM@decode/**/layer1/attention", "layer?/m*", "**/lm_head", "prefill/*/mlp"],
    ],
}

# The facts of ncu that the translation rests on, as expressions given to ncu itself, with the results that match.
# One result per name: 1 plain, 2 layer1, 3 layer10, 5 LLM@step, 88 LLM@inner inside outer, 90 and 91 start/end.
FACTS = [
    ("plain/", [1], "a push/pop range ends in a slash, and without a domain it is of the default domain"),
    ("plain", [], "without a slash only start/end ranges match"),
    ("LLM@se", [91], "a start/end range has no slash"),
    ("LLM@se/", [], "with a slash a start/end range does not match"),
    ("layer*/", [], "the star is a stack quantifier, not a glob"),
    ("regex:layer.*/", [2, 3], "a regular expression matches"),
    ("regex:layer1/", [2, 3], "it matches parts of names: layer1 takes layer10"),
    ("regex:^layer1$/", [2], "unless it is anchored"),
    ("LLM@step/", [], "an at sign separates domain and name: this asks for step in domain LLM"),
    ("LLM\\@step/", [5], "a literal at sign is escaped"),
    ("LLM@plain/", [40], "DOMAIN@NAME"),
    ("LLM@regex:.*lain/", [], "regex: behind the domain matches nothing"),
    ("regex:LLM@plain/", [40], "regex: comes first"),
    ("regex:out.*/inner/", [89], "nested levels in a regular expression"),
    ("outer/", [88, 89], "ranges nested below match too"),
    ("plain/;layer1/", [], "a semicolon does not mean or"),
    ("outer/inner/", [89], "A/B is B inside A"),
]


@cache
def patterns_and_expressions(name: str) -> list[tuple[str, list[str]]]:
    patterns = list(PATTERNS[name])
    if name == NAMES:
        patterns += [escaped(path[-1]) for _, path in hostile_regions() if len(path) == 1]
    return [(p, parse_pattern(p).ncu_expressions()) for p in dict.fromkeys(patterns)]


def exact_expressions() -> dict[tuple[str, tuple[str, ...]], str]:
    return {region: exact_expression(*region) for region in hostile_regions()}


def reported_expressions() -> dict[str, str]:
    """What a report of the names recording tells its reader to type."""
    scope = report(f"ncu-*-{NAMES}.ncu-rep").main_scope
    assert scope is not None
    return {region.key: region.nvtx_include for region in scope.regions}


def expressions_by_report() -> dict[str, list[str]]:
    """All that has to be asked of ncu; the transcript is made from this."""
    asked: dict[str, list[str]] = {}
    for name in PATTERNS:
        asked[name] = [expression for _, found in patterns_and_expressions(name) for expression in found]
    asked[NAMES] += [*exact_expressions().values(), *reported_expressions().values()]
    asked[NAMES] += [expression for expression, _, _ in FACTS]
    return {name: sorted(set(expressions)) for name, expressions in asked.items()}


@cache
def transcript() -> dict[str, dict[str, list[int] | None]]:
    (path,) = RECORDINGS.glob("ncu-*-nvtx-filter-transcript.json")
    found: dict[str, dict[str, list[int] | None]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def matched_by_ncu(name: str, expressions: Iterable[str]) -> list[int]:
    """Results ncu lists for any of the expressions, as recorded."""
    found: set[int] = set()
    for expression in expressions:
        assert expression in transcript().get(name, {}), f"ncu was never asked {expression!r}; ask it with: {RECORD}"
        answer = transcript()[name][expression]
        assert answer is not None, f"ncu refuses {expression!r}"
        found.update(answer)
    return sorted(found)


def selected_by_us(name: str, pattern: str) -> list[int]:
    """Results with a push/pop stack the pattern selects."""
    chosen = RegionFilter.of([pattern])
    return [i for i, a in enumerate(counters(name).actions) if any(chosen.keeps(*item) for item in a.push_pop.items())]


def inside(action: Action, domain: str, path: tuple[str, ...]) -> bool:
    return tuple(action.push_pop.get(domain, ())[: len(path)]) == path


# -- the truth table of ncu's NVTX filters ---------------------------------------------------------


@pytest.mark.parametrize(("expression", "results", "why"), FACTS, ids=[why for _, _, why in FACTS])
def test_ncu_behaves_as_the_translation_assumes(expression: str, results: list[int], why: str) -> None:
    assert matched_by_ncu(NAMES, [expression]) == results


def test_a_name_is_translated_with_the_slash_that_push_pop_ranges_need() -> None:
    for pattern in ("fc1", "fc1/", "LLM@fc1", "LLM@fc1/", "A/fc1"):
        assert all(e.endswith("/") and not e.endswith("//") for e in parse_pattern(pattern).ncu_expressions())
    assert exact_expression("", ["fc1"]) == "fc1/"


def test_a_start_end_range_is_asked_for_without_the_slash() -> None:
    assert exact_expression("", ["backward_se"], start_end=True) == "backward_se"
    assert exact_expression("LLM", ["se"], start_end=True) == "LLM@se"
    assert exact_expression("", ["se/name"], start_end=True) == "se\\/name"


def test_a_glob_becomes_an_anchored_regular_expression() -> None:
    assert parse_pattern("@fc*").ncu_expressions() == ["regex:^fc.*$/"]
    assert parse_pattern("@model::*").ncu_expressions() == ["regex:^model\\x3a\\x3a.*$/"]
    assert parse_pattern("*fc").ncu_expressions() == ["regex:^.*$@^.*fc$/"]


def test_layer1_does_not_take_layer10() -> None:
    assert parse_pattern("layer1").ncu_expressions() == [r"regex:^.*$@^([^\x40]*\x40)?layer1$/"]
    assert not parse_pattern("layer1").matches("", ["layer10"])
    assert parse_pattern("layer1*").matches("", ["layer10"])


def test_an_at_sign_in_the_name_of_a_range_is_escaped() -> None:
    assert exact_expression("", ["LLM@step"]) == "LLM\\@step/"
    assert exact_expression("LLM", ["LLM@step"]) == "LLM@LLM\\@step/"


def test_a_domain_and_a_name_are_asked_for_as_such() -> None:
    assert exact_expression("LLM", ["prefill"]) == "LLM@prefill/"
    in_domain, in_name = parse_pattern("LLM@prefill").ncu_expressions()
    assert in_domain == r"regex:^LLM$@^(LLM\x40)?prefill$/"
    assert in_name == r"regex:^LLM\x40prefill$/"


def test_regex_stands_first_before_the_domain() -> None:
    for pattern in ("LLM@*", "LLM@dec*", "L?M@prefill", "LLM@a/**", "*@*"):
        for expression in parse_pattern(pattern).ncu_expressions():
            assert expression.startswith("regex:")
            assert expression.count("regex:") == 1


def test_nested_levels_stay_levels() -> None:
    assert parse_pattern("LLM@*/*fc1").ncu_expressions()[0] == "regex:^LLM$@^.*$/^.*fc1$/"
    assert exact_expression("LLM", ["run", "fc1"], anchored=True) == "LLM@[run/fc1/"
    assert exact_expression("LLM", ["run", "fc1"], anchored=False) == "LLM@run/fc1/"


def test_a_region_is_selected_with_all_that_is_below_it() -> None:
    chosen = RegionFilter.of(["decode"])
    assert chosen.keeps("", ["run", "decode", "layer0", "mlp"])
    assert not chosen.keeps("", ["run", "prefill", "layer0", "mlp"])


def test_several_patterns_are_several_expressions_never_one_with_a_semicolon() -> None:
    assert len(parse_pattern("LLM@step").ncu_expressions()) == 2
    assert all(";" not in e for p in ("LLM@step", "a;b") for e in parse_pattern(p).ncu_expressions())


# -- what ncu matched is what we select ------------------------------------------------------------


@pytest.mark.parametrize("name", PATTERNS)
def test_ncu_matches_exactly_what_the_pattern_selects(name: str) -> None:
    wrong = {}
    for pattern, expressions in patterns_and_expressions(name):
        ours, theirs = selected_by_us(name, pattern), matched_by_ncu(name, expressions)
        if ours != theirs:
            wrong[pattern] = (expressions, ours, theirs)
    assert list(wrong) == NOT_FOUND_BY_NCU.get(name, []), wrong


def test_the_exact_expression_of_every_hostile_name_matches_that_region_alone() -> None:
    wrong = {}
    for region, expression in exact_expressions().items():
        wanted = [i for i, action in enumerate(counters(NAMES).actions) if inside(action, *region)]
        if matched_by_ncu(NAMES, [expression]) != wanted:
            wrong[region] = expression
    assert list(wrong) == [INEXPRESSIBLE]


def test_what_a_report_tells_people_to_type_selects_the_region_and_no_other() -> None:
    found = counters(NAMES)
    scope = report(f"ncu-*-{NAMES}.ncu-rep").main_scope
    assert scope is not None
    wrong = []
    for region in scope.regions:
        if region.range_kind == "start_end":
            wanted = [i for i, a in enumerate(found.actions) if region.name in a.start_end.get(region.domain, [])]
        else:
            wanted = [i for i, a in enumerate(found.actions) if inside(a, region.domain, tuple(region.path))]
        if matched_by_ncu(NAMES, [region.nvtx_include]) != wanted:
            wrong.append((region.domain, tuple(region.path)))
    assert wrong == [INEXPRESSIBLE]


@pytest.mark.process
@pytest.mark.parametrize("name", PATTERNS)
def test_the_installed_ncu_still_answers_as_recorded(name: str, tmp_path: Path) -> None:
    ncu = installed("ncu")
    if ncu is None:
        pytest.skip("no ncu here: set LLM_PERF_NCU or put it on PATH")
    sys.path.insert(0, str(RECORDINGS / "programs"))
    try:
        from record_nvtx_filters import matching_results
    finally:
        sys.path.pop(0)
    file = tmp_path / "report.ncu-rep"
    file.write_bytes(plain_bytes(recording(f"ncu-*-{name}.ncu-rep")))
    asked = expressions_by_report()[name][::7]  # every seventh: half a second each
    assert {e: matching_results(ncu, file, e) for e in asked} == {e: transcript()[name][e] for e in asked}


# -- the language ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "domain", "path"),
    [
        ("prefill", "", ["prefill"]),
        ("prefill", "LLM", ["prefill"]),
        ("prefill", "", ["run", "prefill"]),
        ("prefill*", "", ["prefill_1"]),
        ("model::*", "", ["model::forward"]),
        ("step?", "", ["step3"]),
        ("step[0-3]", "", ["step3"]),
        ("step[!0-3]", "", ["step7"]),
        ("A/B", "", ["A", "B"]),
        ("A/B", "", ["x", "A", "B"]),
        ("A/**/B", "", ["A", "B"]),
        ("A/**/B", "", ["A", "x", "y", "B"]),
        ("**/B", "", ["B"]),
        ("A/**", "", ["A", "x", "y"]),
        ("**", "D", ["anything", "at", "all"]),
        ("*", "D", ["anything"]),
        ("LLM@*", "LLM", ["prefill"]),
        ("LLM@*", "", ["LLM@prefill"]),
        ("LLM@pre*/layer0", "", ["LLM@prefill", "layer0"]),
        ("LLM@pre*/layer0", "LLM", ["prefill", "layer0"]),
        ("LLM@a/b", "LLM", ["LLM@a", "LLM@b"]),
        ("LLM@a/b", "", ["LLM@a", "LLM@b"]),
        ("a/b", "", ["LLM@a", "LLM@b"]),
        ("a/**/c", "LLM", ["LLM@a", "b", "LLM@c"]),
        ("step", "Other", ["LLM@step"]),
        ("@prefill", "", ["prefill"]),
        (r"LLM\@step", "", ["LLM@step"]),
        (r"a\/b", "", ["a/b"]),
        (r"a\*b", "", ["a*b"]),
        (r"a\\b", "", ["a\\b"]),
        (r"\[x]", "", ["[x]"]),
        ("[x", "", ["[x"]),
        ("a\nb", "", ["a\nb"]),
        ("a*", "", ["a\nb"]),
        ("regex:^LLM@(prefill|decode)$", "LLM", ["decode"]),
        ("regex:layer[0-9]+$", "", ["run", "layer12"]),
    ],
)
def test_the_pattern_names_the_region(pattern: str, domain: str, path: list[str]) -> None:
    assert parse_pattern(pattern).matches(domain, path)


@pytest.mark.parametrize(
    ("pattern", "domain", "path"),
    [
        ("prefill", "", ["prefill_1"]),
        ("prefill", "", ["Prefill"]),
        ("prefill", "", ["prefill", "layer0"]),
        ("refill*", "", ["prefill"]),
        ("step?", "", ["step"]),
        ("step?", "", ["step10"]),
        ("step[!0-3]", "", ["step3"]),
        ("A/B", "", ["A", "x", "B"]),
        ("A/B", "", ["B"]),
        ("A/*/B", "", ["A", "B"]),
        ("LLM@*", "", ["prefill"]),
        ("LLM@*", "Other", ["prefill"]),
        ("LLM@*", "LLM2", ["prefill"]),
        ("LLM@*", "Other", ["LLM@prefill"]),
        ("LLM@prefill", "Other", ["LLM@prefill"]),
        ("LLM@prefill", "", ["Other@prefill"]),
        ("LLM@prefill", "LLM", ["Other@prefill"]),
        ("LLM@a/b", "", ["a", "LLM@b"]),
        ("fill*", "", ["LLM@prefill"]),
        ("@prefill", "LLM", ["prefill"]),
        ("@prefill", "", ["LLM@prefill"]),
        (r"LLM\@step", "LLM", ["step"]),
        (r"a\*b", "", ["axb"]),
        ("a.b", "", ["axb"]),
        ("regex:^prefill$", "LLM", ["prefill"]),
        ("ncu:LLM@prefill/", "LLM", ["prefill"]),
    ],
)
def test_the_pattern_leaves_the_region_alone(pattern: str, domain: str, path: list[str]) -> None:
    assert not parse_pattern(pattern).matches(domain, path)


@pytest.mark.parametrize("pattern", ["", "   ", "LLM@", "@", "/", "LLM@/", "ncu:", "regex:(", "regex:[z-a]"])
def test_a_bad_pattern_is_answered_with_a_sentence(pattern: str) -> None:
    with pytest.raises(UserError) as told:
        parse_pattern(pattern).matches("LLM", ["x"])
    assert told.value.message


def test_an_ncu_expression_is_handed_over_untouched() -> None:
    assert parse_pattern("ncu:regex:LLM@^a$/*/[b/").ncu_expressions() == ["regex:LLM@^a$/*/[b/"]


def test_a_regular_expression_over_keys_cannot_be_asked_of_ncu() -> None:
    with pytest.raises(UserError, match="cannot be translated for ncu without a timeline"):
        parse_pattern("regex:a|b").ncu_expressions()


def test_exclude_wins_and_reaches_down() -> None:
    chosen = RegionFilter.of(["decode*", "prefill"], ["**/mlp", "warm*"])
    assert chosen.keeps("", ["decode_step", "layer0"])
    assert not chosen.keeps("", ["decode_step", "layer0", "mlp"])
    assert not chosen.keeps("", ["decode_step", "layer0", "mlp", "gate"])
    assert not chosen.keeps("", ["warmup", "prefill"])
    assert not chosen.keeps("", ["other"])


def test_without_patterns_everything_is_kept() -> None:
    assert RegionFilter.of().keeps("any", ["thing"])
    assert NameFilter.of().keeps("any kernel")
    assert not NameFilter.of()


def test_only_an_exclude_pattern_keeps_all_the_rest() -> None:
    assert RegionFilter.of(exclude=["warm*"]).keeps("", ["prefill"])
    assert not RegionFilter.of(exclude=["warm*"]).keeps("", ["warmup", "x"])


def test_kernel_patterns_are_exact_globs_or_regular_expressions_and_exclude_wins() -> None:
    chosen = NameFilter.of(["*gemm*", "softmax", "regex:^void .*norm"], ["*splitK*"])
    assert chosen.keeps("sm90_gemm_bf16")
    assert chosen.keeps("void softmax<float>(int)", "softmax")
    assert chosen.keeps("void layer_norm<float>")
    assert not chosen.keeps("softmax_warp")
    assert not chosen.keeps("gemm_splitK_reduce")
    with pytest.raises(UserError):
        NameFilter.of([""])
    with pytest.raises(UserError):
        NameFilter.of(["regex:("])


def test_the_nearest_ranges_come_first_and_all_are_offered_where_none_is_near() -> None:
    ranges = ["LLM@prefill", "LLM@decode", "LLM@decode/decode_step", "vision"]
    assert nearest("perfill", ranges)[0] == "LLM@prefill"
    assert nearest("decode_stp*", ranges)[0] == "LLM@decode/decode_step"
    assert sorted(nearest("zzz", ranges)) == sorted(ranges)
    assert len(nearest("x", [f"range{i}" for i in range(50)])) == 5


# -- for any name ----------------------------------------------------------------------------------

any_name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
awkward = st.text(st.sampled_from("ab@/\\*?[]!-,+.^$(){}| :'\"\n"), min_size=1, max_size=8)
range_names = any_name | awkward


@examples(300)
@given(range_names, range_names)
def test_an_escaped_name_matches_itself_and_no_other_name(name: str, other: str) -> None:
    # The end of a pattern may hold a line break of a shell script: spaces there do not count.
    if name != name.rstrip():
        return
    pattern = parse_pattern(escaped(name))
    assert pattern.matches("", [name])
    assert pattern.matches("", [other]) == (name in (other, other.partition("@")[2]))


LABELS = {
    "a domain": lambda domain, name: (domain, name),
    "a name with its domain": lambda domain, name: ("", f"{domain}@{name}"),
    "both": lambda domain, name: (domain, f"{domain}@{name}"),
}
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:]{0,8}", fullmatch=True)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("pattern", ["LLM@*", "LLM@decode_all", "decode*", "decode_all", "regex:decode_all$"])
def test_a_label_is_found_however_people_write_it(label: str, pattern: str) -> None:
    domain, name = LABELS[label]("LLM", "decode_all")
    assert RegionFilter.of([pattern]).keeps(domain, [name])
    assert RegionFilter.of([pattern]).keeps(domain, ["run", name, "layer0"])
    assert not RegionFilter.of(["prefill*", "other@*", "LLM@prefill"]).keeps(domain, [name])


@examples(200)
@given(words, words, words, st.sampled_from(sorted(LABELS)))
def test_every_way_to_write_a_domain_means_the_same(domain: str, name: str, other: str, label: str) -> None:
    region = LABELS[label](domain, name)
    for pattern in (f"{domain}@*", f"{domain}@{name}", name, f"{name}*", f"{domain}@{name[0]}*", "*", "*@*"):
        assert parse_pattern(pattern).matches(region[0], [region[1]]), pattern
    if other != domain:
        assert not parse_pattern(f"{other}@{name}").matches(region[0], [region[1]])
    assert parse_pattern(other).matches(region[0], [region[1]]) == (other == name)


def _asked_as_ncu_does(expression: str, stacks: dict[str, list[str]]) -> bool:
    """ncu's documented rules for `regex:`, as far as these expressions go: domain@, levels, each on its own."""
    domain, separated, levels = expression.removeprefix("regex:").rpartition("@")
    wanted = levels.removesuffix("/").split("/")
    for found, stack in stacks.items():
        if re.search(domain, found) if separated else found == "":
            for start in range(len(stack) - len(wanted) + 1):
                if all(re.search(w, name) for w, name in zip(wanted, stack[start:], strict=False)):
                    return True
    return False


label_names = st.sampled_from(["a", "ab", "D@a", "E@a", "D@ab", "D@D@a", "@a", "b"])


@examples(400)
@given(
    st.sampled_from(["a", "a*", "D@a", "D@*", "D@a*", "@a", "@*", "?@a", "*@a", "a/b", "D@a/b", "@a/b", "*/a"]),
    st.sampled_from(["", "D", "E"]),
    st.lists(label_names, min_size=1, max_size=3),
)
def test_what_is_given_to_ncu_means_what_we_match(pattern: str, domain: str, path: list[str]) -> None:
    expressions = parse_pattern(pattern).ncu_expressions()
    asked = any(_asked_as_ncu_does(expression, {domain: path}) for expression in expressions)
    assert asked == RegionFilter.of([pattern]).keeps(domain, path)


@examples(300)
@given(range_names | st.just(""), st.lists(range_names, min_size=1, max_size=4), st.booleans())
def test_the_exact_expression_keeps_names_from_meaning_anything_to_ncu(
    domain: str, path: list[str], start_end: bool
) -> None:
    expression = exact_expression(domain, path, start_end=start_end)
    assert expression.endswith("/") != start_end or path[-1].endswith("/")
    body = expression.removeprefix("regex:")
    if body != expression:
        # Codes only: what is left outside them is the skeleton.
        assert not re.search(r"\\(?!x[0-9a-f]{2})", body)
        names = body.split("@", 1)[-1] if domain else body
        assert names.lstrip("[").rstrip("/").count("/") == len(path) - 1
        return
    unescaped = re.sub(r"\\.", "", body, flags=re.DOTALL)
    assert unescaped.count("@") == bool(domain)
    assert unescaped.count("/") == len(path) - 1 + (not start_end)
    assert "*" not in unescaped
    assert "+" not in unescaped


@examples(200)
@given(st.text(max_size=20), st.lists(range_names, max_size=4))
def test_no_text_breaks_the_language(text: str, path: list[str]) -> None:
    with contextlib.suppress(UserError):
        pattern = parse_pattern(text)
        pattern.matches("LLM", path)
        pattern.ncu_expressions()


@examples(100)
@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5), st.sampled_from(["a", "a/b", "**/c", "b/*"]))
def test_the_report_selects_the_same_regions_as_the_filter(path: list[str], pattern: str) -> None:
    from llm_perf_opt.analysis.selected import kept_regions
    from llm_perf_opt.regions.table import RegionTable

    table = RegionTable()
    table.intern_path("D", path)
    for chosen in (RegionFilter.of([pattern]), RegionFilter.of(["*"], [pattern])):
        kept = kept_regions(table, chosen)
        assert kept == [chosen.keeps("D", table.path(i)) for i in range(len(table))]

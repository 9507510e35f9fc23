"""The catalogue of diagnoses and the calls that use it fit together, and a value never becomes a template."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import llm_perf_opt
from llm_perf_opt.diagnosis import Diagnosis, Wording, catalogue, diagnose

SOURCE = Path(llm_perf_opt.__file__).parent


def placeholders(wording: Wording) -> set[str]:
    """The names a wording has filled in."""
    parsed = (*Formatter().parse(wording.message), *Formatter().parse(wording.fix))
    return {name for _, name, _, _ in parsed if name is not None}


def calls(tree: ast.Module) -> Iterator[tuple[set[str], set[str]]]:
    """Every call of `diagnose`: the names it can have, and the values it gives."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in called if isinstance(call.func, ast.Name) and call.func.id == "diagnose"]
    direct = {call.args[0].value for call in found if isinstance(call.args[0], ast.Constant)}
    for call in found:
        (name,), values = call.args, {keyword.arg or "**" for keyword in call.keywords}
        if isinstance(name, ast.Constant):
            yield {str(name.value)}, values
        elif isinstance(name, ast.IfExp):
            yield {str(ast.literal_eval(part)) for part in (name.body, name.orelse)}, values
        else:  # a variable: one of the names that the file mentions elsewhere
            yield (texts & catalogue().keys()) - direct, values


def test_every_wording_is_used_with_exactly_its_values() -> None:
    used = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for names, values in calls(ast.parse(text)) if "diagnose(" in text else ():
            assert names, path
            for name in names:
                assert placeholders(catalogue()[name]) == values, (path, name)
            used |= names
    assert used == catalogue().keys()


def test_the_catalogue_is_well_formed() -> None:
    sections = tomllib.loads((SOURCE / "diagnoses.toml").read_text(encoding="utf-8"))
    assert sum(map(len, sections.values())) == len(catalogue()), "a name stands in two sections"
    for name, wording in catalogue().items():
        assert re.fullmatch(r"[A-Z][A-Z_]+(\.[a-z_]+)?", name)
        assert wording.severity in ("info", "warning", "error"), name
        assert all(part.isidentifier() for part in placeholders(wording)), f"{name}: no attributes or items of values"


def test_diagnoses_are_written_in_the_catalogue_alone() -> None:
    written = [p for p in SOURCE.rglob("*.py") if re.search(r"\bDiagnosis\(\s*[\"']", p.read_text(encoding="utf-8"))]
    assert written == []


def test_a_variant_has_the_rest_from_its_code() -> None:
    full, small = (catalogue()[f"SIGNATURES_WITHOUT_COUNTERS{variant}"] for variant in ("", ".small"))
    assert (full.severity, small.severity) == ("warning", "info")
    assert (full.code, full.message, full.fix) == (small.code, small.message, small.fix)


def test_values_are_never_templates() -> None:
    found = diagnose("NO_CLOSED_FORMULA", reason="{reason.__class__} {0} {")
    assert found == Diagnosis(
        "NO_CLOSED_FORMULA",
        "info",
        "There is no closed formula for this model: {reason.__class__} {0} {.",
        "There is nothing to compare the counters with.",
    )

"""`llm-perf schema`: what is declared of `--json` is what verbs print."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jsonschema
import pytest

from conftest import recording
from llm_perf_opt.cli.main import VERBS, main
from llm_perf_opt.cli.runs import add_arguments as add_actions
from llm_perf_opt.report.printed_json import SHAPES
from llm_perf_opt.report.schema import printed_schema, shipped_schema
from printed import check_printed

TRAIN = str(recording("nsys-*-train.sqlite"))
NAMES = str(recording("nsys-*-names.sqlite"))


def test_every_verb_has_a_schema() -> None:
    assert {name.split()[0] for name in SHAPES} == set(VERBS)


def test_every_action_on_runs_has_a_schema() -> None:
    parser = argparse.ArgumentParser()
    add_actions(parser)
    actions = next(one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    assert {f"runs {name}" for name in actions} == {name for name in SHAPES if name.startswith("runs ")}


@pytest.mark.parametrize("name", SHAPES)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(printed_schema(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report", ["report", TRAIN, "--out", "out", "--format", "json"]),
        ("report", ["report", TRAIN, "--include", "nothing*", "--format", "json"]),
        ("report", ["report", "no-such-file"]),
        ("ranges", ["ranges", NAMES]),
        ("show", ["show", TRAIN, "step/backward"]),
        ("show", ["show", TRAIN, "no such region"]),
        ("open", ["open"]),
        ("compare", ["compare", TRAIN, TRAIN]),
        ("compare", ["compare", TRAIN, "--save-baseline", "base.json"]),
        ("export", ["export", TRAIN, "--csv", "tables"]),
        ("scrub", ["scrub", TRAIN, "--out", "to-share"]),
        ("try", ["try", "--list"]),
        ("runs list", ["runs", "list", "."]),
        ("runs history", ["runs", "history", "."]),
        ("runs prune", ["runs", "prune", "--keep", "1", "."]),
        ("runs compress", ["runs", "compress", "."]),
        ("mcp", ["mcp"]),
        ("schema", ["schema"]),
        ("schema", ["schema", "no such verb"]),
        ("completion", ["completion", "bash"]),
        ("window", ["window", "start", "no-such-run"]),
        pytest.param("plan", ["plan", "--timeline", TRAIN, "--", "true"], marks=pytest.mark.process),
        pytest.param("measure", ["measure", "--out", "run", "--", "true"], marks=pytest.mark.process),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value[:3]) if isinstance(value, list) else value,
)
def test_what_a_verb_prints_is_as_declared(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    at = words.index("--") if "--" in words else len(words)
    main([*words[:at], "--json", *words[at:]])
    check_printed(name, capsys.readouterr().out)


def test_the_verb_prints_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "runs", "list"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema_version")
    assert found == printed_schema("runs list")
    assert main(["schema", "report.json"]) == 0
    assert json.loads(capsys.readouterr().out)["$defs"] == shipped_schema()["$defs"]


def test_an_unknown_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "reprot"]) == 2
    assert "Did you mean report?" in capsys.readouterr().err
    assert main(["schema", "runs"]) == 2
    assert "runs list, runs show" in capsys.readouterr().err

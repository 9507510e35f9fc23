"""What an agent can ask: twenty questions with known answers, and what must never happen to the files asked about."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conftest import recording, report
from llm_perf_opt.agents.caps import MOST_CHARACTERS
from llm_perf_opt.agents.questions import Questions
from llm_perf_opt.agents.workspace import Workspace
from llm_perf_opt.errors import UserError
from llm_perf_opt.report.write import write_report
from llm_perf_opt.rundir.layout import COMMIT

ROOT = Path(__file__).resolve().parents[1]
ASKED = tomllib.loads((ROOT / "tests" / "agent_questions.toml").read_text(encoding="utf-8"))
MOST_CALLS = 3


@pytest.fixture(scope="module")
def questions() -> Questions:
    return Questions(Workspace(ROOT))


def ask(questions: Questions, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One call as a client makes it: by name, and the answer as JSON."""
    (asked,) = [question for question in questions.all if question.__name__ == tool]
    text = json.dumps(asked(**arguments), allow_nan=False, indent=2)  # as the SDK writes it
    assert len(text) <= MOST_CHARACTERS
    found: dict[str, Any] = json.loads(text)
    assert found["schema_version"]
    assert isinstance(found["truncated"], bool)
    return found


def look(found: Any, at: str) -> Any:
    """`rows[key=a].instances`, `fixes.0.id`."""
    for name, field, wanted, plain in re.findall(r"(\w+)\[(\w+)=([^\]]+)\]|([^.\[\]]+)", at):
        if plain:
            found = found[int(plain)] if isinstance(found, list) else found[plain]
        else:
            (found,) = [row for row in found[name] if row[field] == wanted]
    return found


@pytest.mark.parametrize("case", ASKED["question"], ids=lambda case: case["ask"])
def test_a_question_is_answered_right(case: dict[str, Any], questions: Questions) -> None:
    assert len(case["calls"]) <= MOST_CALLS
    answers: list[dict[str, Any]] = []
    for tool, arguments in case["calls"]:
        given = {}
        for name, value in arguments.items():
            if isinstance(value, str) and value.startswith("@"):
                value = ASKED["runs"][value[1:]]
            elif isinstance(value, str) and value.startswith("$"):
                number, _, place = value[1:].partition(".")
                value = look(answers[int(number)], place)
            given[name] = value
        answers.append(ask(questions, tool, given))
    found = look(answers[-1], case["at"])
    if "near" in case:
        assert found == pytest.approx(case["near"], rel=case["within"])
    else:
        assert found == case["is"]


def test_there_are_twenty() -> None:
    assert len({case["ask"] for case in ASKED["question"]}) == 20


# -- what must not happen ------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with a run in it: a report, and beside the folder something that is nobody's business."""
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    write_report(report("nsys-*-train.sqlite"), folder, ["json"])
    (tmp_path / "secret.json").write_text("{}")
    return folder


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


def test_nothing_is_written(run: Path) -> None:
    (run / "nsys").mkdir()
    (run / "nsys" / "run.sqlite.gz").write_bytes(recording("nsys-*-train.sqlite").read_bytes())
    before = state(run.parent)
    asked = Questions(Workspace(run.parent))
    (entry,) = ask(asked, "list_runs", {})["rows"]
    for tool in ("answer", "regions", "kernels", "lines"):
        ask(asked, tool, {"run": entry["run"]})
    ask(asked, "compare", {"base": "one", "new": "one"})
    ask(asked, "evidence", {"run": "one", "id": "region:step"})
    assert state(run.parent) == before


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/passwd", "one/../../secret.json", "link", "a\0b", "~", "none"]
)
def test_paths_outside_are_refused(name: str, run: Path) -> None:
    (run.parent / "link").symlink_to(run.parent.parent / "secret.json")
    asked = Questions(Workspace(run.parent))
    for question in (asked.answer, asked.regions, asked.kernels, asked.lines):
        with pytest.raises(UserError):
            question(name)
    with pytest.raises(UserError):
        asked.compare("one", name)
    with pytest.raises(UserError):
        asked.list_runs(name)


def test_a_link_inside_a_run_does_not_lead_out(run: Path) -> None:
    (run / "nsys").mkdir()
    (run / "nsys" / "run.sqlite").symlink_to(recording("nsys-*-names.sqlite"))
    with pytest.raises(UserError, match="leads outside"):
        Questions(Workspace(run.parent)).answer("one")


def test_a_half_written_report_is_not_finished_by_asking(run: Path) -> None:
    (run / COMMIT).mkdir()
    before = state(run.parent)
    with pytest.raises(UserError, match="was being written"):
        Questions(Workspace(run.parent)).answer("one")
    assert state(run.parent) == before


def test_a_list_has_the_headline_of_each_report(run: Path) -> None:
    (entry,) = Questions(Workspace(run.parent)).list_runs()["rows"]
    found = report("nsys-*-train.sqlite").answer
    assert (entry["run"], entry["kind"]) == ("one", "report")
    assert [entry[name] for name in ("stage", "verdict", "where")] == [found.stage, found.verdict, found.where]


def test_what_is_cut_says_so(questions: Questions) -> None:
    found = questions.regions(ASKED["runs"]["big"], limit=5)
    assert (len(found["rows"]), found["truncated"]) == (5, True)
    assert found["total"] > 100
    whole = questions.regions(ASKED["runs"]["train"], limit=100)
    assert (len(whole["rows"]), whole["truncated"]) == (whole["total"], False)
    assert len(json.dumps(questions.kernels(ASKED["runs"]["demo"], limit=10_000))) <= MOST_CHARACTERS


def test_names_of_a_recording_cannot_play_tricks(questions: Questions) -> None:
    found = questions.regions("tests/recordings/nsys-2025.3.1-h200-names.sqlite.xz", limit=100)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", "".join(row["key"] for row in found["rows"]))


def test_every_row_can_be_asked_about_again(questions: Questions) -> None:
    for run in ("tests/recordings/nsys-2025.3.1-h200-names.sqlite.xz", ASKED["runs"]["waits"], ASKED["runs"]["demo"]):
        found = questions.answer(run, limit=20)
        rows = [*found["fixes"], *found["stages"], *found["diagnostics"], *questions.regions(run, limit=100)["rows"]]
        rows += [*questions.kernels(run)["rows"], *questions.kernels(run, found["answer"]["stage"])["rows"]]
        rows += questions.lines(run)["rows"]
        assert len(rows) > 20
        for row in rows:
            assert questions.evidence(run, row["id"])["id"] == row["id"]


@pytest.mark.parametrize("name", ["region:nothing", "fix:0", "fix:99", "kernel:x@step", "line:-1@step", "other:1", ""])
def test_evidence_there_is_not(name: str, questions: Questions) -> None:
    with pytest.raises(UserError):
        questions.evidence(ASKED["runs"]["train"], name)


def test_a_region_that_is_not_there_gets_the_nearest(questions: Questions) -> None:
    with pytest.raises(UserError, match="backward"):
        questions.kernels(ASKED["runs"]["train"], "bakward")


# -- the server -----------------------------------------------------------------------------------------


def test_the_server_offers_the_same(questions: Questions) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    import anyio

    from llm_perf_opt.agents.mcp_server import build_server

    server = build_server(questions)
    tools = anyio.run(server.list_tools)
    assert [tool.name for tool in tools] == [question.__name__ for question in questions.all]
    assert all(tool.annotations.read_only_hint for tool in tools)


@pytest.mark.process
@pytest.mark.slow
def test_a_client_talks_to_it_over_stdio() -> None:
    pytest.importorskip("mcp.server.mcpserver")
    import anyio
    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    start = ["-c", "from llm_perf_opt.cli.entry import entry; entry()", "mcp", "--root", str(ROOT / "tests/recordings")]

    async def talk() -> tuple[Any, Any]:
        async with (
            stdio_client(StdioServerParameters(command=sys.executable, args=start)) as (reads, writes),
            ClientSession(reads, writes) as session,
        ):
            await session.initialize()
            train = recording("nsys-*-train.sqlite").name
            return await session.call_tool("answer", {"run": train}), await session.call_tool("answer", {"run": ".."})

    answered, refused = anyio.run(talk)
    assert json.loads(answered.content[0].text)["answer"]["verdict"] == "launch"
    assert refused.is_error
    assert "is outside" in refused.content[0].text

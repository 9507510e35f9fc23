"""Nothing secret is in what a run writes, and what a user needs to see is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.cli.main import main
from llm_perf_opt.rundir.command_lines import clean_argv, clean_typed, hides_something, shell_text
from llm_perf_opt.rundir.plain_values import is_plain
from llm_perf_opt.rundir.secrets import kept_environment, without_secret_text
from planted_secrets import PROGRAM, SPELLINGS, left_in, planted, secrets

SHOWN = """
    meta-llama/Llama-3-8B Qwen/Qwen2.5-7B-Instruct mistralai/Mixtral-8x7B-v0.1 bfloat16 cuda:0 0,1,2,3 1e-4 60s 2GB -1
    train.py ./run.sh ../a/b.yaml /data/models/llama3 [1,2,3] {"factor":8.0} tcp://10.0.0.1:29500 flash_attention_2
    http://localhost:8000/v1 expandable_segments:True,max_split_size_mb:128 :4096:8 mlx5_0:1 /usr/bin:/usr/local/cuda/bin
    /home/me/.cache/huggingface/hub/models--x/snapshots/8c3f08d1b0a5c9d2e4f60718293a4b5c6d7e8f90 app.server:main
    tmp/profile-output/20250101-120000 2.5.1+cu124 llama-2-7b.Q4_K_M.gguf /tmp/tmpab3x_9qz/config.yaml
    GPU-8c3f08d1-b0a5-c9d2-e4f6-0718293a4b5c reduce-overhead AdamW wikitext-103-raw-v1
"""
NOT_SHOWN = """
    hunter2hunter2 tr0ub4dor&three wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY JBSWY3DPEHPK3PXP s3cret-value-of-mine
    sk_live_4eC39HqLyjWDarjtT1zdp7dc 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c me:hunter2 redis://:S@h XkQzPwRtLm
    https://hooks.slack.com/services/T01/B02/abcdefgh https://store.example.org/c?sv=1&sig=abc {"password":"hunter2"}
    123456789012345 alice@example.org c29tZXNlY3JldA== https://u:p@h/x $(whoami) x7Kq-9fPz2
    /password:swordfish /data/token=swordfish/x /x:/home/u:swordfish@h
"""


@pytest.mark.parametrize("value", SHOWN.split())
def test_what_people_need_to_see_is_plain(value: str) -> None:
    assert is_plain(value)


@pytest.mark.parametrize("value", [*NOT_SHOWN.split(), "a sentence of four words", "a\nb", "x" * 5000])
def test_what_may_be_a_secret_is_not_plain(value: str) -> None:
    assert not is_plain(value)


def test_the_environment_has_only_names_that_matter_with_plain_values() -> None:
    kept = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "8",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HOME": "/data/hf",
        "XLA_FLAGS": "--xla_gpu_autotune_level=2 --xla_dump_to=/tmp/x",
    }
    gone = {
        "HF_TOKEN": "abc",
        "SLURM_JWT": "abc",
        "VLLM_API_KEY": "abc",
        "HF_ENDPOINT": "https://me:pw@hub",
        "NCCL_NOTE": "x9Kq2LmZ7",
        "DBPASS": "abc",
        "EDITOR": "vim",
        "TF_VAR_db": "abc",
    }
    assert kept_environment({**kept, **gone}) == kept


def test_a_command_line_keeps_its_options_and_hides_what_is_not_plain() -> None:
    typed = "python x.py --model meta-llama/Llama-3-8B --steps 16 -p hunter2 --prompt 'Hello there, you' +a.b.token=abc --path 'x!'"
    shown = clean_argv(shlex.split(typed))
    assert shell_text(shown) == (
        'python x.py --model meta-llama/Llama-3-8B --steps 16 -p "$P" --prompt "$PROMPT" +a.b.token="$A_B_TOKEN" '
        '--path "$PATH_VALUE"'
    )
    assert clean_argv(shown) == shown, "what is clean stays as it is"
    more = clean_argv(shlex.split(typed), show=True)
    assert more[more.index("--prompt") + 1] == "Hello there, you"
    assert hides_something(more), "what looks like a secret is hidden all the same"


def test_our_own_options_and_keys_are_shown() -> None:
    program = ["python", "x.py", "--key", "abc"]
    own = ["llm-perf", "profile", "--kernel", "regex:.*gemv.*", "--include", "LLM@*", "--"]
    assert clean_typed([*own, *program], program)[:-1] == [*own, *program[:-1]]
    keys = ["pipeline.ncu.ncu_cli.nvtx.include=LLM@*", "pipeline.workload.command=[python,x.py,--pw,abc]"]
    assert clean_typed(["python", *keys], []) == ["python", keys[0], f"{keys[1][:-4]}(hidden: $PW)]"]


def test_a_file_with_a_space_in_its_name_is_shown_and_a_sentence_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my work").mkdir()
    (tmp_path / "my work" / "my model.py").touch()
    words = ["python", "my work/my model.py", "--data", "my work/other.txt", "--api-key", "my work/my model.py"]
    hidden = ["(hidden: $DATA)", "(hidden: $API_KEY)"]
    assert clean_argv(words) == [*words[:3], hidden[0], "--api-key", hidden[1]]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_hidden_in_a_command_line_and_in_a_log(spelling: str) -> None:
    found = {name: some if name == spelling else [] for name, some in secrets().items()}
    words, variables = planted(found)
    written = " ".join(clean_argv(words)) + json.dumps(kept_environment(variables))
    printed = without_secret_text("\n".join([*words, *(f"{n}={v}" for n, v in variables.items())]))
    for secret in found[spelling]:
        assert secret not in written
        # By its looks alone; values of the run itself are taken out of its logs wherever they stand.
        assert secret not in printed or spelling in ("-p S", "-pS", "--pass S", "--db-pw S", "--prompt 'a sentence'")


def test_a_log_loses_what_looks_like_a_secret_and_keeps_the_rest(tmp_path: Path) -> None:
    from llm_perf_opt.rundir.log_cleaning import clean_logs

    kept = "attn.key.weight: torch.Size\nmask_softmax_warp_forward_2\nkey=value\npass: 3\nseed: 42\n tokens/s: 12\n"
    kept += "time per output token: 14.93 ms\nms_per_token=0.0149\n"
    hook, query = "https://hooks.slack.com/services/T01/B02/plain", "https://store.example.org/a?sig=plain1"
    log = tmp_path / "log"
    log.write_text(f"{kept}posting to {hook}\nfrom {query}\ndb_pw = tiger7\n'password': 'swordfish'\ntoken: 123456\n")
    clean_logs([log], [], {})
    text = log.read_text()
    assert text.startswith(kept)
    assert not [word for word in ("T01", "plain1", "tiger7", "swordfish", "123456") if word in text]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_none_of_a_hundred_secrets_is_left(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    found = secrets()
    assert sum(map(len, found.values())) == 100
    assert len(found) == 20
    words, variables = planted(found)
    for name, value in {**variables, **({"FAILS": "1"} if fails else {})}.items():
        monkeypatch.setenv(name, value)
    Path("program.py").write_text(PROGRAM)
    options = ["--no-counters", "--no-measure"] if fails else ["--include", "decode*", "--sample", "first"]
    work = [sys.executable, "program.py", "--steps", "16", *words]
    assert main(["profile", *options, "--out", "run", "--", *work]) == (4 if fails else 0)
    assert main(["report", "run"]) == 0
    assert main(["export", "run", "--csv", "tables"]) == 0
    assert [*left_in(Path("run"), found), *left_in(Path("tables"), found)] == []
    assert main(["runs", "list", "."]) == main(["runs", "show", "run"]) == 0
    shown = capsys.readouterr().out
    assert not [secret for some in found.values() for secret in some if secret in shown]
    assert main(["scrub", "run", "--out", "shared"]) == 0
    assert list(left_in(Path("shared"), found, encoded=True)) == []
    assert "encoded:" not in Path("shared/workload.log").read_text()
    Path("copies").mkdir()
    Path("shared").rename("copies/shared")
    assert main(["runs", "prune", "copies", "--max-size", "1KB", "--yes"]) == 0
    assert not list(Path("copies").iterdir()), "a copy can be pruned as a whole"


# -- cmd.txt and what was typed --------------------------------------------------------------------


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path("run/manifest.json").read_text())["steps"]
    return found


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_cmd_txt_can_be_pasted(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("program.py").write_text("import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], sys.argv[1:])\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    work = [sys.executable, "program.py", "--steps", "16", "--pass", "hunter2", "--say", "it's $HOME"]
    options = ["--include", "decode*", "--sample", "first"]
    assert main(["profile", "--out", "run", *options, "--", *work]) == 0
    again = tmp_path / "again"
    again.mkdir()
    for folder in ("nsys", "ncu"):
        lines = Path("run", folder, "cmd.txt").read_text()
        assert "hunter2" not in lines
        bare = {"PATH": os.defpath}
        forgot = subprocess.run(["sh", "-ec", lines], cwd=again, env=bare, capture_output=True, text=True)
        assert forgot.returncode != 0
        assert "PASS" in forgot.stderr
        assert not list(again.glob(f"*.{folder}-rep"))
        done = subprocess.run(
            ["sh", "-ec", lines],
            cwd=again,
            env={**bare, "PASS": "hunter2", "SAY": "it's $HOME"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert f"0,3 {work[2:]}" in done.stdout, "the program had its environment and its arguments"
    for name in ("nsys/run.nsys-rep", "nsys/run.sqlite", "ncu/run-0.ncu-rep", "ncu/raw.csv"):
        assert (again / Path(name).name).read_bytes() == Path("run", name).read_bytes(), name


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_a_run_shows_what_was_typed(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = [sys.executable, "-c", "pass", "--pass", "hunter2"]
    assert main(["profile", "--out", "run", "--no-counters", "--", *work]) == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    hidden = [sys.executable, "-c", "pass", "--pass", "(hidden: $PASS)"]
    assert manifest["command"] == ["llm-perf", "profile", "--out", "run", "--no-counters", "--", *hidden]
    assert manifest["workload"] == hidden
    capsys.readouterr()
    assert main(["runs", "list", "."]) == 0
    assert "  llm-perf profile --out run" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.usefixtures("json_alone")
def test_the_user_can_show_more(tools: Path) -> None:
    work = [sys.executable, "-c", "print('a sentence')", "--pass", "hunter2"]
    assert main(["profile", "--show-command", "--no-counters", "--out", "run", "--", *work]) == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["workload"] == [*work[:-1], "(hidden: $PASS)"]
    assert main(["profile", "--no-counters", "--out", "hidden", "--", *work]) == 0
    assert "a sentence" not in Path("hidden/manifest.json").read_text()

"""A server is put under load, its window opens and closes, it is ended in order, and its steps are those it scheduled."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from fake_tools import write as write_tools
from forks import PROGRAMS
from llm_perf_opt.capture.load_client import LoadClient
from llm_perf_opt.capture.server_window import ASKED, ServerWindow, _told
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.options.values import local_address
from llm_perf_opt.request import ServingRequest
from planted import Planted

SERVER = PROGRAMS / "engines" / "server.py"
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def served(
    tmp_path: Path, *options: str, server: Path = SERVER, words: Sequence[str] = ()
) -> tuple[dict[str, Any], list[list[tuple[int, int, int]]]]:
    """The report of a server that is measured, and what it recorded of its steps."""
    port, records, run = free_port(), tmp_path / "records.json", tmp_path / "run"
    url = ["--url", f"http://127.0.0.1:{port}"]
    command = [sys.executable, str(server), str(port), str(records), *words]
    assert main(["measure", *options, *url, "--out", str(run), "--quiet", "--", *command]) == 0
    assert "ended in order" in (run / "measure" / "workload.log").read_text()
    steps, before = json.loads(records.read_text()), 8  # tokens of the request that is sent before the window
    while before > 0 and "--window-after" not in options:
        before -= sum(made for _, made, _ in steps.pop(0))
    return json.loads((run / "report.json").read_text()), steps


@pytest.mark.slow
@pytest.mark.process
@TORCH
def test_a_server_under_load(tmp_path: Path) -> None:
    load = ("--load", "9", "--concurrency", "3", "--prompt-tokens", "90", "--output-tokens", "12")
    report, steps = served(tmp_path, *load)
    regions = {region["key"]: region for region in report["scopes"][-1]["regions"]}
    phases = Counter(_phase(step) for step in steps)
    assert {key: regions[f"LLM@{key}"]["instances"] for key in phases} == phases
    assert set(phases) == {"prefill", "mixed_step", "decode_step"}
    assert "LLM@warmup" not in regions  # it came before the window
    assert {"LLM@schedule", "LLM@sample", "LLM@update"} <= set(regions)
    decode = regions["LLM@decode_step"]
    assert decode["timing"]["steps"]["new_tokens"] == _made(steps) or decode["timing"]["warmup"]["instances"]
    seen = json.loads((tmp_path / "run" / "measure" / "load.json").read_text())
    assert (seen["requests"]["answered"], seen["requests"]["failed"]) == (9, 0)
    assert (seen["output_tokens"], seen["prompt_tokens_mean"]) == (9 * 12, 90)
    assert seen["output_tokens"] == sum(made for step in steps for _, made, _ in step)
    assert 0 < seen["ttft_s"]["p50"] <= seen["e2e_s"]["p50"]
    assert 0 <= seen["itl_s"]["p50"] <= seen["itl_s"]["p99"] <= seen["e2e_s"]["p99"]
    assert [d["code"] for d in report["diagnostics"] if d["code"] == "LOAD"] == ["LOAD"]


@pytest.mark.slow
@pytest.mark.process
@TORCH
def test_a_server_whose_scheduler_runs_the_model_itself(tmp_path: Path) -> None:
    load = ("--load", "9", "--concurrency", "3", "--prompt-tokens", "90", "--output-tokens", "12")
    report, steps = served(tmp_path, *load, server=SERVER.with_name("sglang_server.py"))
    regions = {region["key"]: region for region in report["scopes"][-1]["regions"]}
    phases = Counter(_phase(step) for step in steps)
    assert {key: regions[f"LLM@{key}"]["instances"] for key in phases} == phases
    assert set(phases) == {"prefill", "mixed_step", "decode_step"}
    assert {"LLM@schedule", "LLM@update"} <= set(regions)


def _phase(step: list[tuple[int, int, int]]) -> str:
    kinds = {before > 0 for _, _, before in step}
    return "mixed_step" if len(kinds) == 2 else "decode_step" if kinds == {True} else "prefill"


def _made(steps: list[list[tuple[int, int, int]]]) -> int:
    return sum(made for step in steps if _phase(step) == "decode_step" for _, made, _ in step)


@pytest.mark.slow
@pytest.mark.process
@TORCH
def test_a_server_that_marks_its_own_steps_is_one_like_others(tmp_path: Path) -> None:
    load = ("--load", "9", "--concurrency", "3", "--prompt-tokens", "90", "--output-tokens", "12")
    report, steps = served(tmp_path, *load, server=SERVER.with_name("own_server.py"), words=("marked",))
    regions = {region["key"]: region for region in report["scopes"][-1]["regions"]}
    phases = Counter(_phase(step) for step in steps)
    assert {key: region["instances"] for key, region in regions.items()} == phases  # and no call of the model beside
    timings = [regions[phase]["timing"] for phase in phases]
    made = sum(timing["steps"]["new_tokens"] for timing in timings)
    assert made == 9 * 12 or any(timing["warmup"]["instances"] for timing in timings)


@pytest.mark.slow
@pytest.mark.process
@TORCH
@pytest.mark.parametrize("marks", ["marked", "bare"])
def test_steps_that_nobody_knows_are_counted_too(marks: str, tmp_path: Path) -> None:
    load = ("--load", "2000", "--concurrency", "3", "--prompt-tokens", "90", "--output-tokens", "12")
    served(tmp_path, "--window", "40", *load, server=SERVER.with_name("own_server.py"), words=(marks,))
    seen = json.loads((tmp_path / "run" / "measure" / "load.json").read_text())
    assert seen["requests"]["failed"] == 0
    assert 0 < seen["requests"]["answered"] < 2000


@pytest.mark.slow
@pytest.mark.process
@TORCH
def test_a_server_is_ended_after_enough_steps(tmp_path: Path) -> None:
    load = ("--load", "100000", "--concurrency", "2", "--prompt-tokens", "8", "--output-tokens", "64")
    report, steps = served(tmp_path, *load, "--window", "40", "--window-after", "serving")
    counted = sum(
        region["instances"]
        for region in report["scopes"][-1]["regions"]
        if region["name"] in ("prefill", "decode_step", "mixed_step")
    )
    # The step that was under way when the window opened counts towards its end, and began before it.
    assert 39 <= counted <= len(steps) < 5000


@pytest.mark.slow
@pytest.mark.process
@TORCH
def test_a_server_under_nsys_is_ended_with_its_recording(tools: Path, json_alone: None, tmp_path: Path) -> None:
    port, records, run = free_port(), tmp_path / "records.json", tmp_path / "run"
    load = ("--load", "100000", "--concurrency", "2", "--prompt-tokens", "8", "--url", f"http://127.0.0.1:{port}")
    command = [sys.executable, str(SERVER), str(port), str(records)]
    options = ("--no-measure", "--window", "30", *load, "--out", str(run), "--quiet")
    assert main(["profile", *options, "--", *command]) == 0
    assert "ended in order" in (run / "workload.log").read_text()
    manifest = json.loads((run / "manifest.json").read_text())
    assert [(step["name"], step["status"]) for step in manifest["steps"]][:2] == [
        ("nsys", "captured"),
        ("export", "done"),
    ]
    assert not any(step["name"].startswith("ncu") for step in manifest["steps"])
    codes = {d["code"] for d in json.loads((run / "report.json").read_text())["diagnostics"]}
    assert {"SERVER_COUNTERS", "LOAD"} <= codes
    assert len(json.loads(records.read_text())) >= 30
    assert json.loads((run / "nsys" / "load.json").read_text())["requests"]["failed"] == 0


@pytest.mark.slow
@pytest.mark.process
@TORCH
def test_counters_of_a_server_are_taken_in_one_pass_and_announced(
    tools: Path, json_alone: None, tmp_path: Path
) -> None:
    """The recording is a real one, whose ranges are called as steps of a server are."""
    with Planted(tmp_path / "steps.sqlite") as recording:
        recording.rename("decode_step", "decode_step, batch = 8, tokens = 8, new = 8")
        recording.rename("prefill", "prefill, batch = 1, tokens = 2048, new = 1")
    write_tools(tools, timeline=recording.path)
    port, records, run = free_port(), tmp_path / "records.json", tmp_path / "run"
    load = ("--load", "100000", "--concurrency", "2", "--prompt-tokens", "8", "--url", f"http://127.0.0.1:{port}")
    command = [sys.executable, str(SERVER), str(port), str(records)]
    options = ("--no-measure", "--server-counters", "--window", "30", *load, "--out", str(run), "--quiet")
    assert main(["profile", *options, "--", *command]) == 0
    assert "serving" in (run / "ncu" / "run-workload.log").read_text()
    assert json.loads((run / "ncu" / "load.json").read_text())["requests"]["failed"] == 0
    (step,) = [step for step in json.loads((run / "manifest.json").read_text())["steps"] if step["name"] == "ncu"]
    asked = step["argv"]
    assert step["status"] == "captured"
    assert asked[asked.index("--filter-mode") + 1] == "per-launch-config"
    assert asked[asked.index("--launch-count") + 1] == "1"
    assert "--profile-from-start" not in asked
    included = [asked[place + 1] for place, word in enumerate(asked) if word == "--nvtx-include"]
    assert len(included) == 2
    assert all("decode_step" in one or "prefill" in one for one in included)
    metrics = asked[asked.index("--metrics") + 1].split(",")
    assert groups_for("9.0")[0].passes_of(metrics).passes == 1
    assert len(metrics) > 3
    told = [d for d in json.loads((run / "report.json").read_text())["diagnostics"] if d["code"] == "SERVER_COUNTERS"]
    assert [d["severity"] for d in told] == ["warning"]
    assert "your own clients may time out" in told[0]["message"]


@pytest.mark.slow
@pytest.mark.process
@TORCH
@pytest.mark.parametrize("verb", [("measure",), ("profile", "--no-measure")])
def test_a_server_that_is_kept_goes_on_until_it_is_interrupted(
    verb: tuple[str, ...], tools: Path, tmp_path: Path
) -> None:
    port, records, run = free_port(), tmp_path / "records.json", tmp_path / "run"
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(SERVER), str(port), str(records)]
    # Long enough for times to be written: what came last is written with the next step, or at the end.
    load = ["--load", "12", "--concurrency", "2", "--prompt-tokens", "8", "--output-tokens", "60"]
    options = [*load, "--url", url, "--keep", "--out", str(run)]
    product = [sys.executable, "-c", "from llm_perf_opt.cli.main import entry; entry()", *verb]
    with subprocess.Popen([*product, *options, "--", *command], stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            shown = ""
            while "the server keeps running" not in shown and (line := child.stderr.readline()):
                shown += line
            assert "LLM@" in shown or verb[0] == "profile"
            wait_until(lambda: verb[0] == "measure" or any(tools.rglob("stopped")))
            assert LoadClient(ServingRequest(load=1, url=url)).is_ready()  # it still serves
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=300)
        finally:
            child.kill()
    assert child.returncode == 0
    assert (run / "report.json").exists()
    assert json.loads((run / "manifest.json").read_text())["state"] == "done"


KILLS_ITS_WORKER = """
import nvtx, os, signal, time
signal.signal(signal.SIGINT, lambda *_: os._exit(0))
while True:
    with nvtx.annotate("decode_step, batch = 1, tokens = 1, new = 1"):
        time.sleep(0.005)
"""


@pytest.mark.process
def test_a_server_that_ends_at_once_has_left_its_last_steps(tmp_path: Path) -> None:
    options = ("--window", "20", "--out", str(tmp_path / "run"), "--quiet")
    assert main(["measure", *options, "--", sys.executable, "-c", KILLS_ITS_WORKER]) == 0
    (region,) = json.loads((tmp_path / "run" / "report.json").read_text())["scopes"][-1]["regions"]
    assert region["instances"] >= 20


TWO_WORKERS = """
import multiprocessing, nvtx, time

def work():
    for _ in range(3):
        with nvtx.annotate("decode_step, batch = 1, tokens = 1, new = 1"):
            time.sleep(0.001)

workers = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""


@pytest.mark.process
def test_each_process_that_runs_steps_has_a_scope_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["measure", "--out", str(out), "--quiet", "--", sys.executable, "-c", TWO_WORKERS]) == 0
    scopes = json.loads((out / "report.json").read_text())["scopes"]
    assert [scope["scope"].partition(":")[0] for scope in scopes] == ["process", "process", "aggregate"]
    assert [[region["instances"] for region in scope["regions"]] for scope in scopes] == [[3], [3], [6]]


DIES = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
answered = 0

class Api(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        global answered
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
        if answered == 3:
            os._exit(9)
        answered += 1
        self.wfile.write(b'data: {"choices": [{"text": "a"}]}\\n\\n')

HTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
"""


@pytest.mark.process
def test_a_server_that_dies_under_load_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, out = free_port(), tmp_path / "run"
    options = ("--load", "6", "--concurrency", "1", "--url", f"http://127.0.0.1:{port}", "--out", str(out))
    assert main(["measure", *options, "--", sys.executable, "-c", DIES, str(port)]) == 4
    assert "exit code 9" in capsys.readouterr().err
    counts = json.loads((out / "measure" / "load.json").read_text())["requests"]
    assert counts == {"answered": 2, "failed": 4, "asked": 6}


@pytest.mark.process
def test_requests_never_go_to_another_server(broken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started, out = tmp_path / "started", tmp_path / "run"
    options = ("--load", "1", "--url", f"http://127.0.0.1:{broken}", "--out", str(out))
    program = f"open({str(started)!r}, 'w')"
    assert main(["measure", *options, "--", sys.executable, "-c", program]) == 2
    assert "Something else already answers at" in capsys.readouterr().err
    assert not started.exists()


# --- the window ---


def window(tmp_path: Path, **asked: Any) -> ServerWindow:
    return ServerWindow(ServingRequest(**asked), tmp_path, lambda _: None, into=".")


def steps_of(found: ServerWindow, count: int, pid: int = 1) -> None:
    found._note(json.dumps({"pid": pid, "event": "steps", "count": count}))


def test_the_window_opens_after_warm_up_and_closes_after_its_steps(tmp_path: Path) -> None:
    found = window(tmp_path, window=10)
    for count in (0, 7, 8):
        steps_of(found, count)
        assert not found.is_done()
    assert found.opened_ns is not None
    steps_of(found, 17)
    steps_of(found, 4, pid=2)  # a worker that is behind
    assert not found.is_done()
    steps_of(found, 18)
    assert found.is_done()
    bounds = found.finish(lambda _: None)
    assert bounds == (found.opened_ns, found.closed_ns)


def test_the_window_waits_for_a_text_or_a_time(tmp_path: Path) -> None:
    printed, timed = window(tmp_path, after="ready: yes"), window(tmp_path, after="600s")
    printed._line("not ready: no")
    assert not printed.is_done()
    assert printed.opened_ns is None
    printed._line("INFO ready: yes\n")
    printed.is_done()
    assert printed.opened_ns is not None
    timed.is_done()
    assert timed.opened_ns is None
    timed._started -= 601
    timed.is_done()
    assert timed.opened_ns is not None


def test_the_window_is_opened_and_closed_from_another_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text('{"state": "running"}')
    found = window(tmp_path, after="never printed")
    assert main(["window", "start", str(tmp_path)]) == 0
    assert not found.is_done()
    assert found.opened_ns is not None
    assert main(["window", "stop", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["asked"] == "stop"
    assert found.is_done()
    assert not any((tmp_path / name).exists() for name in ASKED.values())
    (tmp_path / "manifest.json").write_text('{"state": "done"}')
    assert main(["window", "stop", str(tmp_path)]) == 2


LISTENS = """
import socket, time
found = socket.create_server(("127.0.0.1", 0))
print(found.getsockname()[1], flush=True)
time.sleep(600)
"""


def test_a_window_that_never_opened_is_said(tmp_path: Path) -> None:
    noted: list[Any] = []
    found = window(tmp_path, after="never printed")
    assert "has not printed 'never printed' yet" in found._waited_for()
    assert found.finish(noted.append) is None
    assert [diagnosis.code for diagnosis in noted] == ["WINDOW_NOT_OPENED"]
    assert "never printed 'never printed'" in noted[0].message


@pytest.mark.process
def test_a_program_that_serves_elsewhere_is_said_with_its_port(tmp_path: Path) -> None:
    noted: list[Any] = []
    said: list[str] = []
    with subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True) as elsewhere:
        assert elsewhere.stdout is not None
        port = elsewhere.stdout.readline().strip()
        try:
            url = f"http://127.0.0.1:{free_port()}"
            found = ServerWindow(ServingRequest(load=1, url=url), tmp_path, said.append, into=".")
            found._said -= 31
            assert not found.is_done()
            found._before_end()
            assert found.finish(noted.append) is None
        finally:
            elsewhere.kill()
    assert f"nothing answers at {url} yet; the program listens on port {port}" in said[0]
    assert url in noted[0].message
    assert noted[0].fix.endswith(f"--url http://127.0.0.1:{port}")


def test_calls_of_models_count_until_there_are_steps(tmp_path: Path) -> None:
    found = window(tmp_path, window=10)
    for calls in (8, 17):
        found._note(json.dumps({"pid": 1, "event": "steps", "count": 0, "calls": calls}))
        assert not found.is_done()
    found._note(json.dumps({"pid": 1, "event": "steps", "count": 9, "calls": 99}))
    assert not found.is_done()
    steps_of(found, 10)
    assert found.is_done()


def test_a_server_that_does_not_answer_its_first_request_is_said(tmp_path: Path) -> None:
    noted: list[Any] = []
    found = window(tmp_path, load=1)
    found._is_ready = True
    assert found.finish(noted.append) is None
    assert "did not answer its first request" in noted[0].message


@pytest.fixture
def speaks_something_else() -> Iterator[int]:
    """A server with a protocol of its own, which hangs up on what it does not understand."""
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    threading.Thread(target=hang_up, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)  # or the thread would wait on
    listener.close()


def test_a_server_that_speaks_something_else_is_ready_for_a_load_generator_alone(speaks_something_else: int) -> None:
    url = f"127.0.0.1:{speaks_something_else}"
    assert LoadClient(ServingRequest(load_command="mine", url=url)).is_ready()
    assert not LoadClient(ServingRequest(load=1, url=url)).is_ready()
    assert not LoadClient(ServingRequest(load_command="mine", url=f"127.0.0.1:{free_port()}")).is_ready()


@pytest.mark.process
def test_a_load_generator_of_the_users_own_is_started_without_a_shell(tmp_path: Path, broken: int) -> None:
    words = f"{sys.executable} -c 'import sys; print(sys.argv[1:])' '$HOME; echo'"
    early = window(tmp_path, load_command=words, url=f"127.0.0.1:{free_port()}")
    early.is_done()
    assert early.opened_ns is None  # nobody listens yet
    found = window(tmp_path, load_command=words, url=f"127.0.0.1:{broken}")
    found.is_done()
    assert found.opened_ns is not None
    wait_until(found.is_done)
    assert (tmp_path / "load.log").read_text() == "['$HOME; echo']\n"


SERVES = """
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
HTTPServer(("127.0.0.1", int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--load-command", f"{sys.executable} -c 1/0"), 'failed (exit code 1), and said last: "ZeroDivisionError'),
        (("--load-command", f"{sys.executable} -c 1"), "Nothing could be timed while the window was open"),
        (("--load", "1"), "does not know the OpenAI protocol"),
    ],
)
def test_why_nothing_was_timed_is_said_once(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    port = free_port()
    asked = (*options, "--url", f"http://127.0.0.1:{port}", "--out", str(tmp_path / "run"))
    assert main(["measure", *asked, "--", sys.executable, "-c", SERVES, str(port)]) == 5
    found = json.loads((tmp_path / "run" / "manifest.json").read_text())["diagnostics"]
    assert [said in one["message"] for one in found if one["severity"] == "error"] == [True]


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--load", "1", "--load-command", "x"), "Give one of them"),
        (("--load", "1", "--url", "http://example.com"), "not a server on this machine"),
        (("--load-command", "no-such-generator --fast"), "There is no load generator"),
        (("--load-command", "'open"), "Check its quotes"),
        (("--load", "1", "--keep", "--server-counters"), "Give one of them"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile" if "--server-counters" in options else "measure", *options, "--", "python"]) == 2
    assert said in capsys.readouterr().err


# --- the client ---


class Broken(BaseHTTPRequestHandler):
    """Answers chat alone, without a model's name, and only with what it knows; every other request with garbage."""

    requests = 0
    silent = threading.Event()  # unless it is set, nothing comes after the headers
    silent.set()

    def log_message(self, *words: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 500)  # as transformers does where it has no cache
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or {"ignore_eos", "model"} & set(asked):
            self.send_response(404 if "prompt" in asked else 422)
            self.end_headers()
            return
        Broken.requests += 1
        self.send_response(200)
        self.end_headers()
        Broken.silent.wait(60)
        if Broken.requests % 2:
            self.wfile.write(b"data: {not json\n\n")
            return
        for piece in (
            b'{"choices": [{"delta": {"role": "assistant"}}]}',
            *[b'{"choices": [{"delta": {"content": "a"}}]}'] * 3,
        ):
            self.wfile.write(b"data: " + piece + b"\n\n: a comment\n\n")
        self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": -5}}\n\ndata: [DONE]\n\n')


@pytest.fixture
def broken() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_the_client_counts_what_came_and_what_failed(broken: int) -> None:
    client = LoadClient(ServingRequest(load=6, concurrency=1, prompt_tokens=3, url=f"127.0.0.1:{broken}"))
    Broken.requests = 0
    assert client.is_ready()
    client._model = "first of the list"
    wait_until(client.is_warm)
    assert Broken.requests == 1
    client.start()
    wait_until(lambda: client.is_done)
    found = client.result()
    assert found["requests"] == {"answered": 3, "failed": 3, "asked": 6}
    assert found["output_tokens"] == 9  # pieces: what the server says of itself is no count
    assert found["prompt_tokens_mean"] is None
    assert found["first_failure"]
    waits = client.waits()
    assert [len(rows) for rows in waits.values()] == [3, 6]  # of three answers of three pieces
    assert all((rows[:, 1] >= rows[:, 0]).all() for rows in waits.values())


def test_a_server_that_says_nothing_more_is_given_up(broken: int) -> None:
    """As one whose engine has died: its connections stay open."""
    client = LoadClient(ServingRequest(load=9, concurrency=2, prompt_tokens=3, url=f"127.0.0.1:{broken}"))
    client.patience_s = 0.3
    Broken.silent.clear()
    try:
        client.start()
        assert not client.gave_up()
        wait_until(lambda: bool(client.gave_up()))
        client.stop()
        found = client.result()
    finally:
        Broken.silent.set()
    assert found["requests"] == {"answered": 0, "failed": 2, "asked": 9}
    assert found["seconds"] < 0.3
    assert "no token came for" in found["first_failure"]


class Answers(BaseHTTPRequestHandler):
    """Answers each request with the next of some bodies; the last again and again."""

    bodies: tuple[bytes, ...] = ()
    key = ""

    def log_message(self, *words: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        known = not self.key or self.headers["Authorization"] == f"Bearer {self.key}"
        self.send_response(200 if known else 401)
        self.end_headers()
        body, *rest = self.bodies
        Answers.bodies = tuple(rest) or (body,)
        self.wfile.write(body if known else f"{self.headers['Authorization']} is not known".encode())


TEXT, END = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n', b"data: [DONE]\n\n"
WHOLE = b'{"choices": [{"message": {"content": "a b"}}], "usage": {"completion_tokens": 2, "prompt_tokens": 3}}'


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """What the client finds of two requests that are answered with these bodies."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def found(*bodies: bytes, key: str = "") -> dict[str, Any]:
        monkeypatch.setattr(Answers, "bodies", bodies)
        monkeypatch.setattr(Answers, "key", key)
        client = LoadClient(
            ServingRequest(load=2, concurrency=1, prompt_tokens=3, url=f"127.0.0.1:{server.server_port}")
        )
        client.start()
        wait_until(lambda: client.is_done)
        return client.result()

    yield found
    server.shutdown()
    server.server_close()


def test_an_error_in_a_stream_is_no_answer(answers: Callable[..., dict[str, Any]]) -> None:
    found = answers(TEXT + END, TEXT + b'data: {"error": {"message": "out of memory"}}\n\n' + END)
    assert found["requests"] == {"answered": 1, "failed": 1, "asked": 2}
    assert "out of memory" in found["first_failure"]


@pytest.mark.parametrize("end", [END, b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n'])
def test_a_stream_that_breaks_off_is_no_answer(end: bytes, answers: Callable[..., dict[str, Any]]) -> None:
    assert answers(TEXT + end, TEXT)["first_failure"] == "the answer broke off after 1 pieces"
    assert answers(TEXT)["requests"]["answered"] == 2  # of a server that never says that an answer is over


def test_an_answer_in_one_piece_has_no_first_token(answers: Callable[..., dict[str, Any]]) -> None:
    found = answers(WHOLE)
    assert (found["requests"]["answered"], found["output_tokens"], found["prompt_tokens_mean"]) == (2, 4, 3)
    assert found["ttft_s"] is found["itl_s"] is found["tpot_s"] is None
    assert "time to first token –" in _told(found).message
    assert found["e2e_s"]["p50"] > 0
    assert "does not say how many tokens" in answers(b'{"choices": [{"text": "a b"}]}')["first_failure"]


def test_pieces_of_several_tokens_are_not_called_tokens(answers: Callable[..., dict[str, Any]]) -> None:
    counted = b'data: {"choices": [], "usage": {"completion_tokens": 6}}\n\n'
    several, single = answers(TEXT * 3 + counted + END), answers(TEXT * 3 + END)
    assert (several["output_tokens"], several["tokens_per_piece"], single["tokens_per_piece"]) == (12, 2, 1)
    assert "between two pieces of text (2.0 tokens) 0" in _told(several).message
    assert "between two tokens 0" in _told(single).message


def test_a_server_that_wants_a_key_gets_it(
    answers: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = answers(TEXT + END, key="right")
    told = _told(refused)
    assert (told.code, "requires a key" in told.message, "OPENAI_API_KEY" in told.fix) == ("LOAD", True, True)
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    assert "wrong" not in answers(TEXT + END, key="right")["first_failure"]
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    assert answers(TEXT + END, key="right")["requests"]["answered"] == 2


@pytest.mark.parametrize(
    ("failure", "fix"),
    [
        ("HTTP 404: {}", "--load-command"),
        ("HTTP 400: too long", "--prompt-tokens"),
        ("HTTP 500: HTTP 401: x", "the server's output"),
        ("the answer held no text", "the server's output"),
    ],
)
def test_a_load_that_was_refused_is_told_with_what_helps(failure: str, fix: str) -> None:
    counts = {"answered": 0, "failed": 2, "asked": 2}
    told = _told({"requests": counts, "output_tokens": 0, "first_failure": failure})
    assert (told.severity, fix in told.fix) == ("error", True)


def test_a_server_that_is_not_there_is_not_ready() -> None:
    assert not LoadClient(ServingRequest(load=1, url=f"http://127.0.0.1:{free_port()}")).is_ready()


@pytest.mark.parametrize("url", ["http://example.com:8000", "https://127.0.0.1:1", "http://127.0.0.1.evil.com", "x://"])
def test_only_this_machine_is_asked(url: str) -> None:
    with pytest.raises(UserError, match="not a server on this machine"):
        local_address(url)


def test_addresses() -> None:
    assert local_address("localhost:8000/v1/") == ("localhost", 8000, "")
    assert local_address("http://[::1]:8000/api") == ("::1", 8000, "/api")

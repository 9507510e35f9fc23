"""The submit files of the documentation: the page shows them as they are, shells and Python read them, and Kubernetes would."""

from __future__ import annotations

import ast
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.cli.main import build_parser
from llm_perf_opt.inject.place import place_in_job

SUBMIT = Path(__file__).parents[1] / "docs" / "submit"
PAGE = SUBMIT.parent / "cluster.md"


def test_the_page_shows_every_file_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    files = sorted(SUBMIT.iterdir())
    assert len(files) >= 5
    for file in files:
        assert file.read_text(encoding="utf-8").rstrip("\n") in page, file.name
        assert f"(submit/{file.name})" in page


@pytest.mark.process
@pytest.mark.parametrize("name", ["slurm.sbatch", "torchrun.sbatch"])
def test_a_shell_reads_them(name: str) -> None:
    subprocess.run(["bash", "-n", str(SUBMIT / name)], check=True)


def test_python_reads_the_job_of_ray() -> None:
    """`make cluster` runs it."""
    ast.parse((SUBMIT / "ray_job.py").read_text(encoding="utf-8"))


def test_the_job_of_kubernetes() -> None:
    """Pods have names, ranks, memory they share, one folder for all, and no second start."""
    service, job = yaml.safe_load_all((SUBMIT / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (service["apiVersion"], service["kind"], service["spec"]["clusterIP"]) == ("v1", "Service", "None")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert spec["completions"] == spec["parallelism"]  # all at once: they wait for each other
    assert (spec["completionMode"], spec["backoffLimit"]) == ("Indexed", 0)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}  # a label that Kubernetes gives them
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assignments, command = container["args"][0].split(";")
    words = dict(word.split("=", 1) for word in assignments.removeprefix("export ").split())
    assert words["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert int(words["WORLD_SIZE"]) == spec["completions"]
    place = place_in_job({**words, "RANK": "3"})
    assert place is not None
    assert (place.rank, place.size) == (3, spec["completions"])
    _, *given = shlex.split(command.strip().removeprefix("exec "))
    asked = build_parser().parse_args(given)
    assert (asked.verb, asked.counter_rank) == ("profile", "0")

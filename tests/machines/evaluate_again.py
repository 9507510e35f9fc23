"""Writes the checks of every recorded machine anew from its facts: run it after a change of wording, and read the diff."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import cattrs

from llm_perf_opt.doctor.examine import examine
from llm_perf_opt.doctor.machine_facts import Facts
from llm_perf_opt.errors import ExitCode


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found = examine(cattrs.structure(content["facts"], Facts))
        ready = found.ready.timeline and found.ready.counters
        content |= {
            "ready": {"timeline": found.ready.timeline, "counters": found.ready.counters},
            "summary": found.ready.summary,
            "checks": [attrs.asdict(check) for check in found.checks],
            "exit_code": int(ExitCode.DONE if ready else ExitCode.MISSING_TOOL),
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

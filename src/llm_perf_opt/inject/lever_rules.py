"""The rules that some lever answers: for what a report proposes, which runs nothing and tries nothing itself."""

from __future__ import annotations

import ast
from functools import cache

from llm_perf_opt.inject import LEVERS


@cache
def rules_with_levers() -> frozenset[str]:
    """Ids of the fixes that `llm-perf try` can try on a program from outside."""
    found: set[str] = set()
    for path in LEVERS.glob("[!_]*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["RULES"]:
                found.update(ast.literal_eval(node.value))
    return frozenset(found)

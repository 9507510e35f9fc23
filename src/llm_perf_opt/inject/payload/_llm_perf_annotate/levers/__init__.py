"""Levers: one file each, read without being run by `llm_perf_opt.trying.levers`, run inside the program.

Constants say what a lever is (TITLE, RULES, NEEDS, CHANGES, PATCH …), `apply(program)` pulls it, and
`evidence(program)` says whether it took effect: `(True, "3 graphs compiled")` or `(False, why)`.
"""

"""`llm-perf scrub`: a copy of a run that can be given away.

`private` knows what must not be in it and how to take it out of a text; `sqlite` and `ncu_report` clean the
two kinds of recordings; `run` decides what becomes of each file of a run, and checks the result.
"""

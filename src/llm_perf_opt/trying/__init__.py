"""`llm-perf try`: fixes tried from outside, timed in turns with the program as it is, their outputs compared."""

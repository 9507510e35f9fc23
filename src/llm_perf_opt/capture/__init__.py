"""A profiling run in order: the program alone, its timeline, its counters, and how a run goes on that was cut off."""

"""Command lines of the profilers, as argv lists."""

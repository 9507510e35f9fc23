"""NVIDIA's command lines: what ncu and nsys are called with, and what their installed versions understand."""

"""Nsight Compute: its command line and its replay modes."""

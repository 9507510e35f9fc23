"""Nsight Systems: its command line, and what it samples of the GPU."""

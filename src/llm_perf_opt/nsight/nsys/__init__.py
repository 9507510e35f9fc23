"""Nsight Systems: its command line, what it samples of the GPU, how much it has written."""

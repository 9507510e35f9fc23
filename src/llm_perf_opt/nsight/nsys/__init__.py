"""Nsight Systems: its command line, and what it samples of the GPU."""

TRAFFIC_SET = "llm_perf_traffic.config"  # the file with what nsys is asked to sample of the whole GPU

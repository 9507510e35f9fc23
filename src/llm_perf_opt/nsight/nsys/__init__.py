"""Nsight Systems: its command line, what it samples of the GPU, how much it has written."""

TRAFFIC_SET = "llm_perf_traffic.config"  # the file with what nsys is asked to sample of the whole GPU

"""Stage 1: runs a workload, times its stages, and takes a PyTorch profile of it. Works without a GPU."""

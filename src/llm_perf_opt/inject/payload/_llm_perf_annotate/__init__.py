"""Annotates PyTorch programs with NVTX ranges from inside, without a change to their code.

Loaded by `sitecustomize` into whatever Python the profiled program runs: standard library only, nothing of
llm_perf_opt, Python 3.9 and later. Everything but `imports` waits until the program imports torch.
"""

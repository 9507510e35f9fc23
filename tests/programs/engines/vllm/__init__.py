"""A stand-in for vLLM, which is too large to run here: the modules, classes and fields that its engine core and workers have."""

__version__ = "0.0.0"

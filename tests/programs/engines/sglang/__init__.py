"""A stand-in for SGLang, which is too large to run here: the modules, classes and fields that its scheduler process has."""

__version__ = "0.0.0"

"""The steps of a run, each an object that owns its commands, its files, and how they are evaluated and taken again.

What a step is called in the manifest, and which file is its, is known here and in `rundir.layout` alone.
"""

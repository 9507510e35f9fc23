"""Run by every Python that starts with this folder on PYTHONPATH: prepares annotation, then gives way to the program's own.

`llm-perf profile` puts the folder there. This file imports nothing that is not already loaded,
so that a program without PyTorch pays next to nothing; it takes the folder off `sys.path` again, and gives
way to the `sitecustomize` that Python would have found without it. What goes wrong here never reaches the
program: it is printed once on standard error.
"""

import os
import sys


def _prepare() -> None:
    """Have torch and transformers annotated, and ranges watched, once the program imports what it takes."""
    asked = ("LLM_PERF_ANNOTATE", "LLM_PERF_LINES", "LLM_PERF_RANGES")
    if all(os.environ.get(name, "off") in ("", "off", "0") for name in asked):
        return
    try:
        # Found through sys.path now; its modules are found through the package when the folder has gone.
        from _llm_perf_annotate import imports  # type: ignore[import-not-found]

        imports.watch()
    except Exception as error:
        # Standard error may be closed.
        if sys.stderr is not None:
            sys.stderr.write(f"llm-perf: not active in this program: {type(error).__name__}: {error}\n")


def _give_way(folder: str) -> None:
    """Run the program's own sitecustomize, where it has one, under its own name."""
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(__name__, None) if find_spec is not None else None
        if spec is not None and spec.loader is not None:
            break
    else:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules[__name__] = module
    # Its errors are its own: Python reports them as it would without us.
    spec.loader.exec_module(module)


_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - as sys.path has it; pathlib is slow to import
_prepare()
_give_way(_FOLDER)

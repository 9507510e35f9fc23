"""Notices when the program imports torch, transformers or nvtx, and has them prepared right after.

A finder on `sys.meta_path` answers for the watched names only, by asking the other finders and having the
loader call back when the module has been executed. It leaves when it has nothing left to watch.
"""

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:  # imports cost time, and programs without torch come through here too
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


ENGINES = ("transformers", "vllm", "sglang")  # packages with modules in `engine_targets`


class Watch:
    """Calls an action with a module when it has been imported."""

    def __init__(self, actions: "dict[str, Callable[[ModuleType], None]]", packages: "Sequence[str]" = ()) -> None:
        self._actions = actions
        self._packages = packages  # of engines: which of their modules are watched is looked up when one is imported
        self._asking: set[tuple[str, int]] = set()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        # Other tools that work in the same way ask all finders again: let that question pass.
        question = (name, get_ident())
        if name in self._packages:
            self.watch_engines()
        if name not in self._actions or question in self._asking:
            return None
        self._asking.add(question)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asking.discard(question)
        if spec is not None and spec.loader is not None:
            self._call_back(name, spec.loader)
        return spec

    def watch_engines(self) -> None:
        """Their modules are named only now: most programs have none of them."""
        from .engine_targets import TARGETS

        self._packages = ()
        self._actions.update((target.module, _prepare_by("into_engine")) for target in TARGETS)

    def _ask_others(self, name: str, path: "Sequence[str] | None", target: "ModuleType | None") -> "ModuleSpec | None":
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec: ModuleSpec | None = find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _call_back(self, name: str, loader: object) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: "ModuleType") -> None:
            if module.__name__ != name:  # one loader for several modules, as for those in a zip file
                execute(module)
                return
            # The loader stays the one Python made, so that it is what others expect to find on the module.
            vars(loader).pop("exec_module", None)
            execute(module)
            self.loaded(name, module)

        try:
            loader.exec_module = exec_module  # type: ignore[attr-defined]
        except AttributeError:
            from . import log

            log.trouble(f"{name} is loaded in a way that cannot be watched ({type(loader).__name__}).", _concerns(name))

    def loaded(self, name: str, module: "ModuleType") -> None:
        """A watched module is there."""
        action = self._actions.pop(name, None)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        if action is not None:
            try:
                action(module)
            except Exception as error:
                from . import log

                log.trouble(f"{name} could not be prepared: {type(error).__name__}: {error}.", _concerns(name))


def _concerns(name: str) -> str:
    """What is lost where a module cannot be watched; nvtx is watched for its ranges alone."""
    annotated = os.environ.get("LLM_PERF_ANNOTATE", "off") not in ("", "off")
    return "annotation" if annotated and name != "nvtx" else "ranges"


def _prepare_by(action: str) -> "Callable[[ModuleType], None]":
    def prepare(module: "ModuleType") -> None:
        from . import install

        getattr(install, action)(module)

    return prepare


def watch() -> None:
    """Watch for torch, and as it was asked for, for the part of transformers that has `generate()` and for nvtx."""
    actions: dict[str, Callable[[ModuleType], None]] = {"torch": _prepare_by("into_torch")}
    annotated = os.environ.get("LLM_PERF_ANNOTATE", "off") not in ("", "off")
    if annotated:
        actions["transformers.generation.utils"] = _prepare_by("into_generation")
    if os.environ.get("LLM_PERF_RANGES") == "1":
        actions["nvtx"] = _prepare_by("into_nvtx")
    when_imported(actions, ENGINES if annotated else ())


def when_imported(actions: "dict[str, Callable[[ModuleType], None]]", packages: "Sequence[str]" = ()) -> None:
    """Have actions called, each with its module once it is there. `packages`: of engines to watch."""
    finder = Watch(actions, packages)
    sys.meta_path.insert(0, finder)
    # Something that runs before sitecustomize (a .pth file) may have imported them already.
    if any(package in sys.modules for package in packages):
        finder.watch_engines()
    for name in list(actions):
        if name in sys.modules:
            finder.loaded(name, sys.modules[name])

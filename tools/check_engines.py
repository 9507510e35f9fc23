"""Look up in the sources of serving engines what the annotation hooks and reads: nothing is imported, all is parsed.

    python tools/check_engines.py vllm=0.32.0:/path/to/source sglang=0.5.23:/path/to/file.whl … [--write]

A source is a folder, a wheel or a source archive of the release (`pip download --no-deps`). Prints what is missing;
`--write` records what was found in `tests/engines.json`, beside what other releases had. Exits with 1 where something
is missing that is not optional: then the next release needs a look.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src" / "llm_perf_opt" / "inject" / "payload"))
from _llm_perf_annotate.engine_targets import FIELDS, TARGETS

RESULT = Path(__file__).resolve().parents[1] / "tests" / "engines.json"


class Sources:
    """Modules of a release, parsed when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            text = self._text(module.replace(".", "/") + ".py")
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]

    def owner(self, module: str, name: str) -> ast.ClassDef | None:
        tree = self.tree(module)
        found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name] if tree else []
        return found[0] if found else None

    def _text(self, file: str) -> str | None:
        if self.path.is_dir():
            found = [place for place in (self.path / file, self.path / "src" / file) if place.is_file()]
            return found[0].read_text(encoding="utf-8") if found else None
        if self.path.suffix == ".whl":
            with zipfile.ZipFile(self.path) as wheel:
                return wheel.read(file).decode() if file in wheel.namelist() else None
        with tarfile.open(self.path) as archive:
            for member in archive:
                if member.name.partition("/")[2] in (file, f"src/{file}"):
                    content = archive.extractfile(member)
                    return content.read().decode() if content else None
        return None


def parameters(owner: ast.ClassDef | None, method: str) -> list[str] | None:
    """What a method takes after self; None where the class has none of that name."""
    for node in owner.body if owner else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == method:
            return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)][1:]
    return None


def attributes(owner: ast.ClassDef | None) -> set[str]:
    """Fields of a class: declared, given in `__slots__` or set on self; what its methods are called, too."""
    found: set[str] = set()
    for node in ast.walk(owner) if owner else ():
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name), *_]):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
                found.add(name)
    return found


def check(engine: str, sources: Sources) -> dict[str, Any]:
    methods = {}
    for target in TARGETS:
        if target.engine == engine:
            owner, _, name = target.method.partition(".")
            methods[f"{target.module}:{target.method}"] = parameters(sources.owner(target.module, owner), name)
    fields = {}
    for known in FIELDS:
        if known.engine == engine:
            there = attributes(sources.owner(known.module, known.owner))
            fields |= {f"{known.module}:{known.owner}.{name}": name in there for name in known.names + known.optional}
    return {"methods": methods, "fields": fields}


def missing(engine: str, found: dict[str, Any]) -> list[str]:
    """What is lost: targets and fields that are not there, or take something else."""
    lost = []
    for target in TARGETS:
        if target.engine == engine and not target.optional:
            takes = found["methods"][f"{target.module}:{target.method}"]
            if takes is None or tuple(takes[: len(target.takes)]) != target.takes:
                lost.append(f"{target.method} of {target.module}: {'not there' if takes is None else takes}")
    for known in FIELDS:
        if known.engine == engine:
            names = [name for name in known.names if not found["fields"][f"{known.module}:{known.owner}.{name}"]]
            lost += [f"{known.owner}.{name} of {known.module}: not there" for name in names]
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="+", help="ENGINE=VERSION:PATH")
    parser.add_argument("--write", action="store_true", help=f"record it in {RESULT.name}")
    given = parser.parse_args()
    known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    lost = False
    for release in given.release:
        (engine, _, rest), wanted = release.partition("="), {target.engine for target in TARGETS}
        version, _, path = rest.partition(":")
        if engine not in wanted or not Path(path).exists():
            parser.error(f"{release}: give ENGINE=VERSION:PATH, ENGINE one of {', '.join(sorted(wanted))}")
        found = check(engine, Sources(Path(path)))
        known.setdefault(engine, {})[version] = found
        problems = missing(engine, found)
        lost |= bool(problems)
        print(f"{engine} {version}: {'all is there' if not problems else ''}")
        for problem in problems:
            print(f"  {problem}")
    if given.write:
        RESULT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())

"""Where inputs come from: lists of files, globs, prompts, a manifest; and which of them are run, in what order.

A file that is not there is an error that names every place looked at: a dataset that quietly shrinks would
make two runs incomparable.
"""

from __future__ import annotations

import glob
import random
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from attrs import Factory, define

from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads.workload_options import DatasetOptions, SamplingOptions

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})
_GLOB_SIGNS = frozenset("*?[")
_MANIFEST_KEYS = ("path", "prompt", "id")

T = TypeVar("T")


@define(frozen=True)
class Item:
    """One input: a text, a file, or a file with a question about it."""

    id: str
    prompt: str | None = None
    path: Path | None = None
    extra: dict[str, Any] = Factory(dict)  # what a manifest says beyond that; handed through to predictions
    of_package: bool = False  # a stand-in: nobody gave any

    @property
    def image(self) -> Path | None:
        return self.path if self.path is not None and self.path.suffix.lower() in IMAGE_SUFFIXES else None

    def text(self) -> str:
        """What a model that reads text is given.

        A text file is its content. A page has its text beside it, under its name with `.txt`, or is at least
        called by its name."""
        if self.path is None:
            return self.prompt or ""
        source = self.path if self.image is None else self.path.with_suffix(".txt")
        content = _read_text(source).strip() if source.is_file() else self.path.name
        return "\n".join(part for part in (self.prompt, content) if part)


def load_items(options: DatasetOptions, manifest: Path | None = None, folder: Path | None = None) -> list[Item]:
    """All inputs, before sampling. Relative paths start at `folder`, else where the program was started."""
    folder = Path.cwd() if folder is None else folder
    if manifest is not None:
        items = _from_manifest(_existing(manifest, [folder], "inputs.manifest"))
    elif options.subset_filelist:
        items = _from_files(options, options.subset_filelist, folder)
    elif options.root is not None and not options.prompts:
        items = _from_folder(folder / options.root)
    else:
        texts, of_package = _prompts(options.prompts, folder), not options.prompts
        items = [Item(f"prompt-{n}", prompt=text, of_package=of_package) for n, text in enumerate(texts, 1)]
    return items


@define(frozen=True)
class Sampled:
    """What is run of the inputs, in order."""

    items: list[Item]  # of all epochs
    given: int  # inputs there are
    epochs: int

    def __str__(self) -> str:
        """As in `3 of 8 inputs`."""
        each = f"{len(self.items) // self.epochs:,} of {self.given:,} input{'s' if self.given != 1 else ''}"
        return each if self.epochs == 1 else f"{each} in each of {self.epochs} epochs"


def sample(items: Sequence[Item], sampling: SamplingOptions, batch_size: int = 1) -> Sampled:
    """A shuffle is the same for the same seed. Of the package's own prompts one batch is enough, unless more are asked for."""
    order = random.Random(sampling.seed)  # noqa: S311 - nothing secret
    most = sampling.num_samples_per_epoch
    if most is None and all(item.of_package for item in items):
        most = batch_size
    chosen: list[Item] = []
    for _ in range(sampling.num_epochs):
        epoch = list(items)
        if sampling.randomize:
            order.shuffle(epoch)
        chosen += epoch[:most]
    return Sampled(chosen, len(items), sampling.num_epochs)


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Neighbours together; the last batch may be smaller."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def default_prompts() -> list[str]:
    """The prompts that ship with the package."""
    return _lines((files("llm_perf_opt.workloads") / "data" / "prompts.txt").read_text(encoding="utf-8"))


def _from_files(options: DatasetOptions, name: str, folder: Path) -> list[Item]:
    root = None if options.root is None else folder / options.root
    if _GLOB_SIGNS & set(name):
        base = folder if root is None else root
        # A pattern may be absolute, which `Path.glob` does not allow.
        found = sorted(Path(match) for match in glob.glob(name, root_dir=base, recursive=True))  # noqa: PTH207
        paths = [base / path for path in found if (base / path).is_file()]
        if not paths:
            raise UserError(
                f"No file matches dataset.subset_filelist={name} below {base}.",
                "Check the pattern; it is relative to dataset.root, or to the folder the command was started in.",
            )
    else:
        source = _existing(Path(name), [folder] if root is None else [folder, root], "dataset.subset_filelist")
        # A list usually lies in a folder of lists beside the folder of pages.
        places = [place for place in (root, source.parent, source.parent.parent) if place is not None]
        lines = _lines(_read_text(source))
        if not lines:
            raise UserError(f"The list {source} names no file.", "Write one path per line, relative to dataset.root.")
        paths = [_existing(Path(line), places, f"the list {source}") for line in lines]
    prompts = _prompts(options.prompts, folder) if options.prompts else [None]
    return [
        Item(_name(path, number), prompt=prompt, path=path)
        for number, (path, prompt) in enumerate(((path, prompt) for path in paths for prompt in prompts), 1)
    ]


def _from_folder(root: Path) -> list[Item]:
    if not root.is_dir():
        raise UserError(f"dataset.root={root} is not a folder.", "Give the folder that holds the pages or texts.")
    paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise UserError(f"There is no picture below dataset.root={root}.", "Name files with dataset.subset_filelist.")
    return [Item(_name(path, number), path=path) for number, path in enumerate(paths, 1)]


def _prompts(prompts: Sequence[str], folder: Path) -> list[str]:
    if not prompts:
        return default_prompts()
    if len(prompts) == 1 and prompts[0].endswith(".txt") and "\n" not in prompts[0]:
        source = _existing(Path(prompts[0]), [folder], "dataset.prompts")
        lines = _lines(_read_text(source))
        if not lines:
            raise UserError(f"The file {source} contains no prompts.", "Write one prompt per line.")
        return lines
    return list(prompts)


def _from_manifest(source: Path) -> list[Item]:
    import yaml

    shape = "Write a list of inputs, as in:\n  - prompt: Say hello.\n  - path: pages/one.png"
    try:
        content = yaml.safe_load(_read_text(source))
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: dates such as 2026-99-99
        raise UserError(f"The manifest {source} is not YAML: {' '.join(str(error).split())}", shape) from error
    if isinstance(content, dict) and set(content) == {"inputs"}:
        content = content["inputs"]
    if not isinstance(content, list) or not content:
        raise UserError(f"The manifest {source} is not a list of inputs.", shape)
    return [_manifest_item(entry, number, source, shape) for number, entry in enumerate(content, 1)]


def _manifest_item(entry: object, number: int, source: Path, shape: str) -> Item:
    where = f"Input {number} of the manifest {source}"
    if isinstance(entry, str):
        # A word alone is a path where there is such a file, else a prompt.
        entry = {"path": entry} if _is_there(source.parent / entry) else {"prompt": entry}
    if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
        raise UserError(f"{where} is neither a text nor names with values.", shape)
    prompt, path = entry.get("prompt"), entry.get("path")
    if prompt is None and path is None:
        raise UserError(f"{where} has neither `prompt` nor `path`.", shape)
    if not isinstance(prompt, str | None) or not isinstance(path, str | None):
        raise UserError(f"{where}: `prompt` and `path` have to be texts.", shape)
    found = None if path is None else _existing(Path(path), [source.parent], where[0].lower() + where[1:])
    given = entry.get("id")
    name = str(given) if given is not None else _name(found, number) if found else f"prompt-{number}"
    extra = {key: value for key, value in entry.items() if key not in _MANIFEST_KEYS}
    return Item(name, prompt=prompt, path=found, extra=extra)


def _is_there(path: Path) -> bool:
    """Is it a file? A text that the system refuses as a name is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a NUL in it
        return False


def _existing(path: Path, places: Sequence[Path], what: str) -> Path:
    """The file, in the first place that has it."""
    path = path.expanduser()
    tried = list(dict.fromkeys([path] if path.is_absolute() else [place / path for place in places]))
    for candidate in tried:
        if _is_there(candidate):
            return candidate
    raise UserError(
        f"{path}, named by {what}, does not exist or is not a file. Tried: {', '.join(str(p) for p in tried)}.",
        "Correct the path, or set dataset.root to the folder it is relative to.",
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path} cannot be read: {reason}.", "Give a text file in UTF-8.") from error


def _lines(text: str) -> list[str]:
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def _name(path: Path, number: int) -> str:
    return f"{number:03d}-{path.stem}"


def described(item: Item) -> dict[str, Any]:
    """An item as it is written into `inputs.yaml`, which is itself a manifest."""
    entry: dict[str, Any] = {"id": item.id}
    if item.path is not None:
        entry["path"] = str(item.path.resolve())
    if item.prompt is not None:
        entry["prompt"] = item.prompt
    return entry | item.extra

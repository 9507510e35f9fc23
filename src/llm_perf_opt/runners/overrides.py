"""What people type, brought into the form Hydra takes; what no key answers to is refused with the nearest.

Hydra's own words for a typo are about structs and plus signs. Here every key is known, so the answer can
name the key that was meant. With and without a leading `+`, the same key is the same key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from llm_perf_opt.errors import UserError
from llm_perf_opt.options import KEYS, flatten
from llm_perf_opt.options.option import TEXTS
from llm_perf_opt.spelling import nearest

# Groups of the configuration and where each is placed.
GROUPS = {
    "model": "model",
    "profiling/ncu": "pipeline.ncu",
    "profiling/torch": "pipeline.torch_profiler",
    "launch": "launch",
}
# What presets of launchers need; the extra that brings it has the name of the preset.
_LAUNCHERS = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "slurm": "hydra_plugins.hydra_submitit_launcher",
    "ray": "ray",
}
# Short forms of earlier days, still understood.
_SHORT = {"profiling.": "pipeline.torch_profiler.", "nvtx.": "pipeline.ncu.ncu_cli.nvtx."}
_HYDRA_OPTIONS_WITH_VALUE = {
    *("--cfg", "-c", "--package", "-p", "--info", "-i"),
    *("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--experimental-rerun"),
}
_PRESET = re.compile(r"@?(profiling/(?:ncu|torch))/(?P<name>[^/]+)")
_FILE, _FROM_FILE = (".yaml", ".yml"), "file."
_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=\s]+?)(?:=(?P<value>.*))?", re.DOTALL)


def normalised(words: Iterable[str]) -> list[str]:
    """Overrides for Hydra; its own options with their values come first, for it takes no others behind an override."""
    words = list(words)
    sweep = any(word in ("-m", "--multirun") for word in words)
    options: list[str] = []
    overrides: list[str] = []
    value_follows = False
    for word in words:
        if word.startswith("-") or value_follows:
            options.append(word)
            value_follows = word in _HYDRA_OPTIONS_WITH_VALUE
        else:
            overrides.append(word)
    own = _own_folder(options)
    return [*options, *(_normalised(word, sweep, own) for word in overrides)]


def _own_folder(options: list[str]) -> Path | None:
    """The folder of the user's own presets."""
    for word, following in pairwise([*options, ""]):
        name, _, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            return Path(value or following)
    return None


def _normalised(word: str, sweep: bool, own: Path | None) -> str:
    if re.search(r"\d{1000}", word):  # Python refuses to read much longer ones, and Hydra does not expect that
        raise UserError(f"{word[:40]}… contains a number of more than a thousand digits.", "Give a smaller one.")
    found = _OVERRIDE.fullmatch(word)
    if found is None or (found["value"] is None and found["sign"] != "~"):
        raise UserError(f"{word!r} is not an override.", "Write KEY=VALUE, as in device=cpu.")
    key, value, sign = found["key"], found["value"] or "", found["sign"] or ""
    if key == "profiling" and (preset := _PRESET.fullmatch(value)):
        key, value = preset[1], preset["name"]
    if value.endswith(_FILE) and (group := next((g for g, place in GROUPS.items() if place == key), "")):
        key = group
    if key.split("@")[0] in GROUPS and not (key == "model" and value.startswith("{")):
        return _group(key.split("@")[0], value, own, sweep)
    if key.startswith(("hydra.", "hydra/")) or key == "hydra":
        return word
    for short, full in _SHORT.items():
        if key.startswith(short) and f"{full}{key.removeprefix(short)}" in KEYS:
            key = full + key.removeprefix(short)
    free = next((k for k in KEYS.values() if k.kind == "mapping" and f"{key}.".startswith(f"{k.key}.")), None)
    is_branch = any(name.startswith(f"{key}.") for name in KEYS)
    if free is None and key not in KEYS and not is_branch:
        raise unknown_key(key)
    if sign == "~":
        raise UserError(f"{word!r} would remove a key, but all are needed.", f"Set it instead: {key}=VALUE")
    if free is None and key not in KEYS and not value.startswith("{"):
        raise unknown_key(key)
    # A free mapping may get new names; every other key exists already.
    return f"{'++' if free else ''}{key}={_value(key, value, sweep)}"


def _group(group: str, value: str, own: Path | None, sweep: bool) -> str:
    choices = [_of_file(group, c) if c.endswith(_FILE) else c for c in (value.split(",") if sweep else [value])]
    known = options_of(group, own)
    if unknown := [c for c in choices if c not in known and not c.startswith(_FROM_FILE)]:
        value = unknown[0]
        close = nearest(value, known, 1)
        raise UserError(
            f"{group}={value}: there is no such choice. Did you mean {close[0]}?",
            f"Choose from {', '.join(known)}."
            + (" Any local model: model=hf_causal_lm model.path=FOLDER" if group == "model" else ""),
        )
    if group == "launch" and (module := _LAUNCHERS.get(value)) and find_spec(module) is None:
        raise UserError(f"launch={value}: {module} is not installed.", f"pip install 'llm-perf-opt[{value}]'")
    place = GROUPS[group]
    return f"{group}{'' if place == group else f'@{place}'}={','.join(choices)}"


def _of_file(group: str, name: str) -> str:
    """Make a file a choice of its group: it has the settings alone, or below the keys where the group is placed."""
    place, fix = GROUPS[group], "Give a YAML file with keys and values, as in ncu_cli: {set: roofline}"
    try:
        settings = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{name} cannot be read: {error}.", fix) from None
    if not isinstance(settings, dict):
        raise UserError(f"{name} has no settings.", fix)
    if place.split(".")[0] in settings:
        if others := [key for key, _ in flatten(settings) if not key.startswith(f"{place}.")]:
            raise UserError(f"{name} also sets {others[0]}.", f"Keep only settings of {place} in it.")
        settings = OmegaConf.select(OmegaConf.create(settings), place)
    choice = _FROM_FILE + re.sub(r"\W", "_", name)
    ConfigStore.instance().store(choice, settings, group)
    return choice


def options_of(group: str, own: Path | None = None) -> list[str]:
    """The choices of a group: those of the package, and the user's own."""
    folders = [files("llm_perf_opt.conf").joinpath(*group.split("/")), *([own / group] if own else [])]
    there = [file.name for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return sorted({name.removesuffix(".yaml") for name in there if name.endswith(".yaml")})


def unknown_key(key: str) -> UserError:
    close = nearest(key, KEYS, 3)
    return UserError(
        f"There is no key {key!r} in the configuration.",
        f"Did you mean {close[0]} ({KEYS[close[0]].allowed})? Also near: {', '.join(close[1:])}.",
    )


def _value(key: str, value: str, sweep: bool) -> str:
    """A value Hydra's grammar cannot read (a kernel name with brackets, say) is quoted for it.

    Outside a sweep `a,b` is a list where the key is one.
    """
    try:
        parsed = OverridesParser.create().parse_override(f"x={value}")
        if parsed.is_sweep_override() and not sweep and key in KEYS and KEYS[key].kind in ("list", "patterns"):
            return f"[{value}]"
    except HydraException:
        if key not in KEYS or KEYS[key].kind not in (*TEXTS, "list", "patterns") or value[:1] in "[{":
            raise UserError(
                f"{key}={value} cannot be read.", f"Allowed: {KEYS[key].allowed if key in KEYS else 'a value'}."
            ) from None
        escaped = value.replace("'", "\\'")
        return f"'{escaped}'"
    return value

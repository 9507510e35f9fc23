"""Advice in the spelling of the runners: `--budget 60s` becomes `pipeline.ncu.budget=60s`.

Advice is written once, with the flags of `llm-perf` and of the profilers. A runner has keys instead, and the
declaration of each option says which.
"""

from __future__ import annotations

import functools
import re
import shlex

from llm_perf_opt.options.declared import KEYS, options_of

# Prefixes of keys that are named as options of the profilers; the last one wins: ncu has the most.
_OF_PROFILERS = ("pipeline.nsys.", "pipeline.ncu.ncu_cli.")
# Other spellings that the profilers have for an option.
_SHORT = {
    "--section": "pipeline.ncu.ncu_cli.sections",
    "-k": "pipeline.ncu.ncu_cli.kernel_name",
    "-s": "pipeline.nsys.sample",
    "-t": "pipeline.nsys.trace",
}
_OPTION = re.compile(
    # A whole command of a program stays as it is: it is typed into a shell.
    r"(?P<command>(?<![\w/-])(?:llm-perf|ncu|nsys|dcgmi|docker|nvidia-smi|pip|sudo|python)\s+[^`;.]*(?:\.\w[^`;.]*)*)"
    r"|`(?P<quoted>-[^`]*)`"
    r"|(?P<option>(?<![\w-])--[a-z][a-z-]*)(?:[ =](?P<number>\d[\w.]*))?"
)
_BOTH = re.compile(r" \(the runners: [^)]*\)")  # printed where the front end is not known


@functools.cache
def settings_by_flag() -> dict[str, str]:
    """What a runner types in place of each flag, of `llm-perf profile` and of the profilers."""
    found = {
        f"--{key.removeprefix(prefix).replace('.', '-').replace('_', '-')}": key
        for prefix in _OF_PROFILERS
        for key in KEYS
        if key.startswith(prefix)
    }
    own = {option.flag: option.setting for option in options_of("profile") if option.setting}
    return found | _SHORT | own


def in_keys(text: str) -> str:
    """The same advice with keys in place of options."""
    keys = settings_by_flag()

    def replace(found: re.Match[str]) -> str:
        if found["quoted"] is not None:
            setting = _settings(found["quoted"], keys)
            return f"`{setting}`" if setting else found[0]
        if found["command"] is not None or found["option"] not in keys:
            return found[0]
        return _setting(found["option"], found["number"], keys)

    # `--hardware bandwidth=4.8TB/s` names a key below its own.
    return re.sub(r"\bhardware (?=\w+=)", "hardware.", _OPTION.sub(replace, _BOTH.sub("", text)))


def _settings(options: str, keys: dict[str, str]) -> str | None:
    """Options as they would be typed, each with its value; None where one has no key."""
    try:
        words = shlex.split(options.replace("=", " "))
    except ValueError:
        return None
    pairs: list[tuple[str, str | None]] = []
    for word in words:
        if word.startswith("-"):
            pairs.append((word, None))
        elif pairs and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], word)
        else:
            return None
    if not all(option in keys for option, _ in pairs):
        return None
    return " ".join(_setting(option, value, keys) for option, value in pairs)


def _setting(option: str, value: str | None, keys: dict[str, str]) -> str:
    key = keys[option]
    if not value or "=" in key or " " in key:
        return key
    if option.startswith("--nvtx-") and value.endswith("/"):  # an expression of ncu, not a pattern of ours
        value = f"ncu:{value}"
    # Hydra's grammar and the shell's both want what is not a plain word in quotes.
    return f"{key}={value}" if re.fullmatch(r"[\w.,-]+", value) else f"'{key}=\"{value}\"'"

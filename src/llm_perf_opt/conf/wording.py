"""Advice for people who set configuration keys: `--budget 60s` becomes `pipeline.ncu.budget=60s`.

Advice is written once, with the options of `llm-perf` and of the profilers. Who runs a Hydra runner has
neither: each option has a key there, and that is what must be typed.
"""

from __future__ import annotations

import re
import shlex

from llm_perf_opt.conf.keys import KEYS

_NCU, _NSYS, _CLI = "pipeline.ncu.", "pipeline.nsys.", "pipeline.ncu.ncu_cli."
# Options whose key has another name. With a value that is fixed: what to set instead of the option.
_OWN = {
    "--out": "hydra.run.dir",
    "--include": f"{_CLI}nvtx.include",
    "--exclude": f"{_CLI}nvtx.exclude",
    "--kernel-include": f"{_NCU}kernels.include",
    "--kernel-exclude": f"{_NCU}kernels.exclude",
    "--kernel": f"{_CLI}kernel_name",
    "--timeout": f"{_NSYS}timeout_s or {_NCU}timeout_s",
    "--no-counters": "run.mode=light",
    "--no-fallback": f"{_NCU}fallback=false",
    "--no-aggregate": f"{_NCU}aggregate=false",
    "--strict": f"{_NCU}strict=true",
    "--verify": f"{_NCU}verify=true",
    "--no-windows": f"{_NCU}windows=false",
    "--no-traffic": f"{_NSYS}traffic_hz=0",
    "--run-to-end": f"{_NCU}run_to_end=true",
    "--annotate": "pipeline.annotate.mode",
    "--annotate-depth": "pipeline.annotate.depth",
    "--launch": f"{_CLI}launch_skip",
    "--top": "run.top_n_kernels",
    "--section": f"{_CLI}sections",
    "-k": f"{_CLI}kernel_name",
    "-s": f"{_NSYS}sample",
    "-t": f"{_NSYS}trace",
}
_OPTION = re.compile(
    # A whole command of a program stays as it is: it is typed into a shell.
    r"(?P<command>(?<![\w/-])(?:llm-perf|ncu|nsys|dcgmi|docker|nvidia-smi|pip|sudo|python)\s+[^`;.]*(?:\.\w[^`;.]*)*)"
    r"|`(?P<quoted>-[^`]*)`"
    r"|(?P<option>(?<![\w-])--[a-z][a-z-]*)(?:[ =](?P<number>\d[\w.]*))?"
)
_BOTH = re.compile(r" \(the runners: [^)]*\)")  # said for those who know neither


def option_keys() -> dict[str, str]:
    """The key of every option that has one."""
    keys = {}
    for prefix in (_NSYS, _NCU, _CLI):  # the last one wins: ncu's own options are the most
        for name in KEYS:
            if name.startswith(prefix) and (prefix == _CLI or not name.startswith(_CLI)):
                rest = name.removeprefix(prefix)
                keys[f"--{rest.replace('.', '-').replace('_', '-')}"] = name
    keys |= {"--sample": f"{_NCU}sample"}  # nsys has one of its own, which advice never names
    return keys | _OWN


def in_keys(text: str) -> str:
    """The same advice with keys in place of options."""
    keys = option_keys()

    def replace(found: re.Match[str]) -> str:
        if found["quoted"] is not None:
            told = _settings(found["quoted"], keys)
            return f"`{told}`" if told else found[0]
        if found["command"] is not None or found["option"] not in keys:
            return found[0]
        return _setting(found["option"], found["number"], keys)

    return _OPTION.sub(replace, _BOTH.sub("", text))


def _settings(options: str, keys: dict[str, str]) -> str | None:
    """Options as somebody would type them, each with its value; None where one has no key."""
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

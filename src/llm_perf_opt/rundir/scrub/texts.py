"""Texts of a run for a copy to share: what may stay in each is listed, what nobody knows is left out.

A program may print a secret in any form (base64, hexadecimal, in pieces), so nothing that it printed stays. Of the
profilers' logs the lines stay whose wording is known. Environments, settings and command lines are cleaned anew: an
older version may have written them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from llm_perf_opt.nsight.messages import RULES
from llm_perf_opt.nsight.progress import LINES as PROGRESS
from llm_perf_opt.rundir.command_lines import clean_argv, clean_step, clean_typed, shell_text
from llm_perf_opt.rundir.plain_values import is_plain
from llm_perf_opt.rundir.secrets import clean_settings, kept_environment
from llm_perf_opt.untrusted import parse_json

_FOLDERS = {"nsys": "nsys", "export": "nsys", "stats": "nsys", "ncu": "ncu", "raw": "ncu"}
LEFT_OUT = "(left out)"
# Lines of the profilers that tell nothing but how far they are, besides those of `nsight.progress`.
_KNOWN = re.compile(
    r"==WARNING== Note: Running with unmodified GPU clocks\.[ \w,.]*|==PROF== Disconnected from process \d+"
    r"|==PROF== Trying to shutdown target application|==(?:ERROR|WARNING)== See https://docs\.nvidia\.com/[\w./#-]+ [\w ,.-]+"
)
_QUOTED = re.compile(r'(?:The program said[^:]*|line of output): "(.*)"', re.DOTALL)
_QUOTE = re.compile("'[^']*'")  # of a path
# Lines of the program's source: in `report.json` the last value of a record, in the page below the name of the line.
_SOURCE = re.compile(r'^(\s*"text": )"(?:[^"\\]|\\.)*"$|<br><code class="dim small">[^<]*</code>', re.MULTILINE)


def without_source(text: str) -> str:
    """Whole lines of a report or a page, without those of the program's source."""
    return _SOURCE.sub(lambda found: f'{found[1]}""' if found[1] else "", text)


def only_counted(lines: Iterable[str]) -> str:
    """Instead of what a program printed, how much it was."""
    count = sum(1 for _ in lines)
    return f"({count} line{'s' * (count != 1)} of output, left out)\n" if count else ""


def profiler_log(lines: Iterable[str]) -> Iterator[str]:
    """Known lines of a profiler without the names and paths they quote; of the others how many there were."""
    unknown = 0
    for line in lines:
        text = line.rstrip("\r\n")
        if (known := _known_part(text)) is None:
            unknown += bool(text.strip())
            continue
        if unknown:
            yield f"({unknown} other line{'s' * (unknown != 1)}, left out)\n"
            unknown = 0
        yield f"{known}\n"
    if unknown:
        yield f"({unknown} other line{'s' * (unknown != 1)}, left out)\n"


def _known_part(line: str) -> str | None:
    """What may stay of a line: the part whose wording is known; None where nothing is."""
    for pattern in PROGRESS:
        if found := pattern.match(line):
            return _QUOTE.sub(LEFT_OUT, found[0])
    if found := _KNOWN.fullmatch(line):
        return found[0]
    for rule in RULES:
        if rule.pattern is not None and rule.printed_by == "profiler" and (found := rule.pattern.search(line)):
            return rule.code if "{" in rule.cause else f"{rule.code}: {rule.cause}"
    return None


def environment(text: str) -> str:
    content = parse_json(text)
    shared = kept_environment({str(k): str(v) for k, v in content.items()}) if isinstance(content, dict) else {}
    return json.dumps(shared, indent=1) + "\n"


def settings(text: str) -> str:
    """A YAML file of settings, inputs or overrides."""
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError("it is no YAML") from error
    if isinstance(content, dict):
        cleaned: Any = {**clean_settings(content), **commands({k: v for k, v in content.items() if k == "command"}, [])}
    elif isinstance(content, list) and all(isinstance(word, str) for word in content):
        cleaned = clean_typed(content, [])
    else:
        cleaned = plain_only(content)
    return str(yaml.safe_dump(cleaned, sort_keys=False, allow_unicode=True))


def plain_only(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: plain_only(value) for name, value in content.items() if is_plain(str(name))}
    if isinstance(content, list):
        return [plain_only(value) for value in content]
    return content if not isinstance(content, str) or is_plain(content) else LEFT_OUT


def program_of(manifest: Any) -> list[str]:
    """The program of a run, as its manifest has it; older versions had no other command."""
    for name in ("workload", "command"):
        words = manifest.get(name) if isinstance(manifest, dict) else None
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            return words
    return []


def with_clean_commands(text: str, program: list[str]) -> str:
    """A JSON file of a run, its command lines cleaned."""
    return json.dumps(commands(parse_json(text), program), indent=1) + "\n"


def commands(content: Any, program: list[str]) -> Any:
    """The same content with the command lines in it cleaned, wherever they are."""
    if isinstance(content, list):
        return [commands(item, program) for item in content]
    if not isinstance(content, dict):
        return content
    cleaned: dict[str, Any] = {}
    for name, value in content.items():
        words = isinstance(value, list) and value and all(isinstance(word, str) for word in value)
        if name == "settings" and isinstance(value, dict):
            cleaned[name] = clean_settings(value)
        elif words and name == "argv":
            cleaned[name] = clean_step(value, program)
        elif words and name == "command":
            cleaned[name] = clean_typed(value, program)
        elif words and name == "workload":
            cleaned[name] = clean_argv(value)
        else:
            cleaned[name] = commands(value, program)
    return cleaned


def command_file(manifest: Any, folder: str) -> str:
    """`cmd.txt` of a folder from the manifest: the commands of its steps."""
    steps = manifest.get("steps") if isinstance(manifest, dict) else None
    lines = []
    for step in steps if isinstance(steps, list) else []:
        words = step.get("argv") if isinstance(step, dict) else None
        mine = isinstance(step, dict) and _FOLDERS.get(str(step.get("name")), "") == folder
        if mine and isinstance(words, list) and all(isinstance(word, str) for word in words):
            lines.append(shell_text(clean_step(words, program_of(manifest))) + "\n")
    return "".join(lines)


def quoted_output(content: Any) -> Iterator[str]:
    """What diagnoses of a manifest quote of the program's output."""
    if isinstance(content, dict):
        for name, value in content.items():
            if name == "message" and isinstance(value, str):
                yield from (quote.strip() for found in _QUOTED.finditer(value) for quote in found[1].split(" · "))
            else:
                yield from quoted_output(value)
    elif isinstance(content, list):
        for item in content:
            yield from quoted_output(item)

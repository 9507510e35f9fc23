"""Where our words end and those of the program begin, for who leaves out `--`.

argparse takes an option that it knows wherever it stands: `profile python train.py --out weights` would lose two words of
the program, and profile another one than was typed.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.names import printable


def with_separator(words: list[str], verb: argparse.ArgumentParser) -> list[str]:
    """The same words with `--` before the program; as they are where it is there, or where no program is run."""
    if "--" in words or not any(action.dest == "command" for action in verb._actions):
        return words
    switches = {name: action.nargs == 0 for action in verb._actions for name in action.option_strings}
    at = 1  # after the verb
    while at < len(words) and words[at].startswith("-"):
        name, equals, _ = words[at].partition("=")
        meant = {name} & switches.keys() or {known for known in switches if known.startswith(name)}
        if len(meant) != 1:
            return words  # argparse says what is wrong with it
        at += 1 if equals or switches[meant.pop()] else 2
    theirs = words[at:]
    place = next((n for n, word in enumerate(theirs) if n and word.partition("=")[0] in switches), 0)
    if place:
        claimed = theirs[place]
        after = place + (1 if "=" in claimed or switches[claimed] else 2)
        ours = [*words[:at], *theirs[place:after], "--", *theirs[:place], *theirs[after:]]
        raise UserError(
            f"{claimed} comes after the program: it is not clear whether it is the program's or llm-perf's.",
            f"If it is llm-perf's: {shlex.join(['llm-perf', *ours])}  If it is the program's: "
            f"{shlex.join(['llm-perf', *words[:at], '--', *theirs])}",
        )
    if not theirs:
        return words
    if not {"-q", "--quiet", "--json"} & {*words[:at]}:
        # Not repeated: what follows it may hold a secret, and this may be a log.
        name = shlex.quote(printable(theirs[0]))
        print(f"llm-perf: -- is missing: {name} and everything after it are taken as the program.", file=sys.stderr)
    return [*words[:at], "--", *theirs]

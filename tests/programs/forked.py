"""Runs programs one after the other, each in a fork of this process, which has imported what they import.

forked.py FOLDER PROGRAM... leaves NAME.out, NAME.err and NAME.code of every program in FOLDER. Importing torch takes
longer than what most of the programs do with it.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch._dynamo.backends.debugging
import torch._dynamo.convert_frame
import torch.export  # noqa: F401
import transformers.generation  # noqa: F401
from transformers import LlamaForCausalLM, StaticCache, T5ForConditionalGeneration, TextIteratorStreamer  # noqa: F401


def forked(program: Path, folder: Path) -> bool:
    """Whether this is the process that runs the program; the other one has waited for its end."""
    with open(os.environ["PARTS_FILE"], "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps({"event": "program", "name": program.name}) + "\n")
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (folder / f"{program.name}.code").write_text(str(code))
        return False
    for descriptor, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{program.name}.{ending}", os.O_WRONLY | os.O_CREAT), descriptor)
    return True


if __name__ == "__main__":
    for name in sys.argv[2:]:
        if forked(Path(name), Path(sys.argv[1])):
            sys.argv = [name]
            sys.path[0] = str(Path(__file__).parent)
            runpy.run_path(name, run_name="__main__")
            break  # and ends as any program, with what is registered for the end

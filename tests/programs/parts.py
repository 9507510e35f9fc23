"""Marks the parts of a program in the file that the annotation writes its ranges to."""

from __future__ import annotations

import json
import os


def part(name: str) -> None:
    with open(os.environ["PARTS_FILE"], "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps({"event": "part", "name": name}) + "\n")

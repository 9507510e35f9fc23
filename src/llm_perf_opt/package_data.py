"""The tables that ship with the package, as TOML beside the code that reads them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def read_toml(package: str, name: str) -> dict[str, Any]:
    """A table of the package whose `__package__` is given."""
    return tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))

"""Runs docs/notebook.ipynb from top to bottom and keeps what its cells show; a test says when something is missing.

    pip install nbclient ipykernel
    python tools/execute_notebook.py

Only what is shown is kept: no times of execution, no ids of a run, no paths of this machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"


def main() -> None:
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        sys.exit("This needs nbclient and ipykernel: pip install nbclient ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell["id"] = {}, f"cell-{number}"
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

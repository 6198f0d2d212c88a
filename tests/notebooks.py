"""Run a notebook from a clean kernel.

``python tests/notebooks.py examples/*.ipynb`` runs each one and stores its outputs in it. Machines may differ in
the last digits, so no test compares the numbers; one says that the outputs are there and small.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def run(path, out):
    """Run the notebook at ``path`` in the folder of ``out`` and write it there with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(Path(out).parent)}},
    ).execute()
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, out)


if __name__ == "__main__":
    paths = sys.argv[1:]
    if paths[0] == "--out":
        run(paths[2], paths[1])
    else:
        for path in paths:
            run(path, path)

"""Run the tutorials as a reader would, and keep their outputs: `make tutorials`.

    python docs/tutorials/execute.py            # all, outputs are written into the notebooks
    python docs/tutorials/execute.py ogb-record # one

Each notebook runs in an empty folder and in a kernel of its own. Numbers of executions, seconds, memory, the folder and
lines of DGL's log are taken out of its outputs, so that a second run on a machine leaves no difference for git.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIMIT = 600
"""Seconds of a cell."""
GONE = re.compile(r"^(\[\d\d:\d\d:\d\d\] |graph-emb: compiling kernels).*\n?", re.MULTILINE)
VARIES = re.compile(r"\b\d[\d,.]*(?= ?(?:s|ms|MiB|MB|GB|[a-z]+/s)\b)")


def run(notebook: Path, folder: Path, **variables: str) -> Any:
    """The notebook with fresh outputs.

    Args:
        notebook: An .ipynb file, which stays as it is.
        folder: An empty one, in which the cells run.
        variables: Of the environment of its kernel, beside those of this process.
    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised, or a command of a shell cell failed.
    """
    book = nbformat.read(notebook, as_version=4)
    here = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    with tempfile.TemporaryDirectory() as own:  # a kernel's history and sockets
        # One thread of OpenMP: sums in one order, and no threads that spin while they wait on a loaded machine.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **here, "IPYTHONDIR": own, **variables}
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{own}/kernel.json")
        place = {"metadata": {"path": str(folder)}}
        client = NotebookClient(book, km=kernel, timeout=LIMIT, startup_timeout=LIMIT, resources=place)
        client.record_timing, client.coalesce_streams = False, True
        client.execute(env=environment, cleanup_kc=True)
    return book


def clean(book: Any, folder: Path) -> Any:
    """Take out of a notebook what differs between two runs."""
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
            if output.output_type == "stream":
                output.text = _plain(output.text, folder)
            for kind in ("text/plain", "text/html"):
                if kind in output.get("data", {}):
                    output.data[kind] = _plain(output.data[kind], folder)
        cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return book


def _plain(text: str, folder: Path) -> str:
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(f"{place}/", "").replace(place, ".")
    return VARIES.sub("…", GONE.sub("", text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(path.stem for path in NOTEBOOKS))
    args = parser.parse_args()
    unknown = set(args.names) - {path.stem for path in NOTEBOOKS}
    if unknown:
        parser.error(
            f"no tutorial {', '.join(sorted(unknown))}; there are {', '.join(path.stem for path in NOTEBOOKS)}"
        )
    for notebook in NOTEBOOKS:
        if args.names and notebook.stem not in args.names:
            continue
        with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
            began = time.perf_counter()
            book = run(notebook, Path(folder))
            took = time.perf_counter() - began
            nbformat.write(clean(book, Path(folder)), notebook)
        print(f"{notebook.stem}: {took:.0f} s, {notebook.stat().st_size / 1000:,.0f} kB", flush=True)


if __name__ == "__main__":
    main()

"""The wheel of this checkout in empty environments: does it work there, and how long is the way to first results?

python benchmarks/wheels.py --pythons python3.10 python3.11 python3.12 --json runs/wheels.json

Each Python gets an environment with nothing but the wheel and what it asks for. Seconds are wall time: ``packages`` of
``pip install``, ``clone`` from git clone to the demo's picture with the packages there and no kernel compiled,
``cold`` of a program that embeds the karate club with no kernel compiled, ``warm`` of the same program again. ``rows``
is when these have the rows; the rest is the start and the end of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "graph_emb", "partition")
AIMS = {"clone": 60.0, "cold": 10.0, "warm": 2.0}
"""Seconds; of cold and warm until the rows are there."""
KARATE = """
import time
begin = time.perf_counter()
import networkx as nx
import graph_emb as ge
rows = ge.DeepWalk().fit_transform(nx.karate_club_graph())
print(ge.__file__, *rows.shape, time.perf_counter() - begin)
"""


def build_wheel(folder: Path, python: str = sys.executable) -> Path:
    """Build the wheel from a copy of the packages, so that nothing that lies in the checkout by chance is in it.

    Args:
        folder: Gets ``source`` and the wheel.
        python: An interpreter with pip and setuptools; nothing is downloaded.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        place = CHECKOUT / name
        if place.is_dir():
            shutil.copytree(place, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(place, source)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([python, *words, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_beside(folder: Path, wheel: Path, packages: Path) -> Path:
    """An environment that has the wheel, and sees other packages where they are: its interpreter.

    Args:
        folder: Where to make it.
        wheel: What ``build_wheel`` returned.
        packages: The site-packages of an environment of this Python; a checkout that is installed there in place is not
            seen, because .pth files of a folder that a .pth file names are not read.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "packages.pth").write_text(f"{packages}\n")
    words = ["-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([sys.executable, *words, str(wheel)], check=True)
    return folder / "bin" / "python"


def settings(folder: Path) -> dict[str, str]:
    """The environment's variables of a new user: an empty home, and nothing that points at this checkout."""
    folder.mkdir(exist_ok=True)
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "GRAPH_EMB_DATA", "NUMBA_CACHE_DIR")
    return {**{key: value for key, value in os.environ.items() if key not in left_out}, "HOME": str(folder)}


def forget_kernels(environment: Path) -> None:
    """As before the first start: numba's machine code lies beside the modules."""
    for package in ("graph_emb", "partition"):
        for place in environment.glob(f"lib/python*/site-packages/{package}/**/__pycache__/*.nb[ic]"):
            place.unlink()


class Timed:
    """Programs of one environment, run in a folder of their own."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.environment, self.folder = environment, folder
        folder.mkdir()
        self.variables = settings(folder / "home")

    def run(self, *words: str, program: str = "python") -> tuple[float, str]:
        """Seconds, and what was printed."""
        begin = time.perf_counter()
        line = [str(self.environment / "bin" / program), *words]
        done = subprocess.run(line, check=True, cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, text=True)
        return time.perf_counter() - begin, done.stdout

    def karate(self) -> dict[str, float]:
        """Seconds until the rows are there, and of the whole process.

        Raises:
            RuntimeError: the package is another one, or the rows have another shape.
        """
        total, told = self.run("-c", KARATE)
        place, num_rows, width, seconds = told.split()
        if not Path(place).is_relative_to(self.environment) or (num_rows, width) != ("34", "128"):
            raise RuntimeError(f"{place} gave {num_rows} x {width} rows; expected 34 x 128 by {self.environment}")
        return {"rows": float(seconds), "process": total}

    def clone(self, constraint: Path) -> float:
        """Seconds from git clone to the picture of the demo, the packages there."""
        forget_kernels(self.environment)
        begin = time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(self.folder / "clone")], check=True)
        words = ["--quiet", "--force-reinstall", "--no-deps", "--constraint", str(constraint)]
        self.run("-m", "pip", "install", *words, str(self.folder / "clone"))
        self.run("demo", program="graph-emb")
        seconds = time.perf_counter() - begin
        if not (self.folder / "runs" / "demo" / "map.png").stat().st_size:
            raise RuntimeError("the demo drew nothing")
        return seconds


def measure(python: str, folder: Path, colds: int, warms: int) -> dict[str, object]:
    """Install into an empty environment of one Python, unless it is there; the seconds of each step, by name."""
    environment, constraint = folder / "environment", CHECKOUT / "requirements" / "tested.txt"
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="graph_emb-wheel-") as place:
        wheel = build_wheel(Path(place))
        again = ["--force-reinstall", "--no-deps"] if environment.exists() else []
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
        timed = Timed(environment, Path(place) / "elsewhere")
        words = ["--quiet", *again, "--constraint", str(constraint), str(wheel)]
        seconds, _ = timed.run("-m", "pip", "install", *words)
        found["packages"] = None if again else seconds
        found["version"] = timed.run("-c", "import platform; print(platform.python_version())")[1].strip()
        cold = []
        for _ in range(colds):
            forget_kernels(environment)
            cold.append(timed.karate())
        found["cold"], found["warm"] = cold, [timed.karate() for _ in range(warms)]
        found["demo"], _ = timed.run("demo", program="graph-emb")
        found["clone"] = timed.clone(constraint)
    return found


def span(runs: list[dict[str, float]], what: str) -> str:
    """Lowest to highest."""
    values = [run[what] for run in runs]
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    """Build, install, run, print a line for each Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=["python3.10", "python3.11", "python3.12"])
    parser.add_argument("--cold", type=int, default=3, help="runs without kernels; default: %(default)s")
    parser.add_argument("--warm", type=int, default=5, help="runs with kernels; default: %(default)s")
    parser.add_argument("--keep", type=Path, help="a folder for the environments, whose packages a next call finds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="graph_emb-wheels-") as place:
        for python in args.pythons:
            folder = (args.keep or Path(place)) / Path(python).name
            folder.mkdir(parents=True, exist_ok=True)
            found[python] = measure(python, folder, args.cold, args.warm)
            print(f"{python}: installed, run, timed", file=sys.stderr, flush=True)
            if args.keep is None:
                shutil.rmtree(folder)  # gigabytes
    rows = []
    for one in found.values():
        cold, warm = ([span(one[name], what) for what in ("rows", "process")] for name in ("cold", "warm"))
        rows.append([one["version"], one["packages"], one["demo"], one["clone"], *cold, *warm])
    heads = ["Python", "packages s", "demo s", f"clone s (aim {AIMS['clone']:.0f})"]
    heads += [f"cold rows s (aim {AIMS['cold']:.0f})", "cold s", f"warm rows s (aim {AIMS['warm']:.0f})", "warm s"]
    print(tabulate(rows, heads, floatfmt=".1f"))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

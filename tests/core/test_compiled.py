"""The generator below walks, initial rows, negatives and the ties of partitioning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numba import njit

import graph_emb
from graph_emb.core.compiled import GOLDEN, UNIT, mix64, unit, unit_draw

# The first outputs of the authors' generator, started at 0.
PUBLISHED = np.array([0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F], np.uint64)


def test_it_gives_the_published_numbers_one_by_one_and_as_an_array() -> None:
    states = np.arange(1, 4, dtype=np.uint64) * GOLDEN
    assert [int(mix64(state)) for state in states] == PUBLISHED.tolist()
    assert np.array_equal(mix64(states), PUBLISHED)


def test_a_unit_draw_is_the_upper_53_bits() -> None:
    assert unit(PUBLISHED[0]) == (int(PUBLISHED[0]) >> 11) * UNIT
    assert unit(np.uint64(2**64 - 1)) == 1 - UNIT
    assert unit(np.uint64(2**11 - 1)) == 0


def test_a_draw_depends_on_its_stream_and_number_alone() -> None:
    @njit
    def draws(key, out):
        for number in range(len(out)):
            out[number] = unit_draw(key, number)

    got = np.empty(4)
    draws(np.uint64(0), got)
    assert got.tolist() == [0.0, *(unit(bits) for bits in PUBLISHED)]
    assert unit_draw(GOLDEN, 2) == unit(PUBLISHED[2])


KERNEL = """
from graph_emb.core.compiled import njit
from kernels.helper import twice


@njit(cache=True)
def run(x):
    return twice(x)
"""
HELPER = """
from numba import njit
from kernels.numbers import FACTOR


@njit(inline="always")
def twice(x):
    return x * FACTOR
"""


def test_a_cached_kernel_is_compiled_again_when_a_module_that_it_imports_changes(tmp_path: Path) -> None:
    """numba looks at the file of the function alone: an upgraded package went on with the helpers of before."""
    package = tmp_path / "kernels"
    package.mkdir()
    texts = {"__init__": "", "run": KERNEL, "helper": HELPER, "numbers": "FACTOR = 2"}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    paths = [str(tmp_path), str(Path(graph_emb.__path__[0]).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = "from kernels.run import run; print(run(3), sum(run.stats.cache_hits.values()))"

    def found() -> str:
        command = [sys.executable, "-B", "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert found() == "6 0\n"
    assert found() == "6 1\n"  # cached
    (package / "numbers.py").write_text("FACTOR = 5", encoding="utf-8")  # two imports away
    assert found() == "15 0\n"
    (package / "helper.py").write_text(HELPER.replace("x * F", "x + F"), encoding="utf-8")
    assert found() == "8 0\n"


def test_the_first_compile_on_a_machine_says_so_once_and_a_cached_start_says_nothing(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from graph_emb.core.compiled import mix64, unit; from graph_emb.core.terminal import *\n"
        "with notes_shown({shown}): mix64(np.uint64(1)); unit(np.uint64(1))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def told(shown: bool) -> str:
        command = [sys.executable, "-c", code.format(shown=shown)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr

    assert told(True).count("compiling kernels, once for this machine") == 1  # for two kernels
    assert told(True) == ""
    for file in tmp_path.rglob("*.nb?"):
        file.unlink()
    assert told(False) == ""

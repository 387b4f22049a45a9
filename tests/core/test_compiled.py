"""The generator below walks, initial rows, negatives and the ties of partitioning."""

from __future__ import annotations

import fcntl
import os
import runpy
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import graph_emb
from graph_emb.core import compiled
from graph_emb.core.compiled import GOLDEN, UNIT, mix64, unit, unit_draw
from tests.conftest import CHECKOUT

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


@pytest.mark.parametrize("ours", [True, False])
def test_where_neither_package_nor_home_can_be_written_kernels_are_kept_in_an_own_temporary_folder(
    ours: bool, tmp_path: Path
) -> None:
    """numba refuses to make such a function at all: in a container that may not write, nothing could be imported."""
    package, temporary = tmp_path / "kernels", tmp_path / "temporary"
    temporary.mkdir()
    package.mkdir()
    for name, text in {"__init__": "", "run": KERNEL, "helper": HELPER, "numbers": "FACTOR = 2"}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    (package / "__pycache__").touch()  # root may write everywhere, but not into a file
    folder = temporary / f"graph-emb-kernels-{os.geteuid()}"
    if not ours:  # others can write into it
        folder.mkdir()
        folder.chmod(0o777)
    paths = [str(tmp_path), str(CHECKOUT)]
    nowhere = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": "/dev/null/cache", "TMPDIR": str(temporary)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **nowhere}
    environment.pop("NUMBA_CACHE_DIR", None)
    code = (
        "from kernels.run import run; from graph_emb.core.compiled import FIRST\n"
        "print(run(3), FIRST.kept, sum(getattr(run.stats, 'cache_hits', {}).values()))"
    )

    def found() -> str:
        command = [sys.executable, "-B", "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert found() == f"6 {ours} 0\n"
    assert found() == f"6 {ours} {int(ours)}\n"
    assert stat.S_IMODE(folder.stat().st_mode) == (0o700 if ours else 0o777)
    assert any(folder.rglob("*.nbc")) == ours


def test_a_disk_that_does_not_take_machine_code_is_no_error(tmp_path: Path) -> None:
    code = (
        "import resource, numpy as np; from graph_emb.core.compiled import mix64\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); print(mix64(np.uint64(1)))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert int(done.stdout) == int(mix64(np.uint64(1)))
    assert not any(file.stat().st_size for file in tmp_path.rglob("*.nb?"))


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


def test_seconds_of_compiling_are_counted_once_for_all_threads_and_none_where_the_cache_has_the_code(
    tmp_path: Path,
) -> None:
    code = (
        "import time, numpy as np; from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "from graph_emb.core.compiled import COMPILING, mix64, unit, unit_draw\n"
        "begin = time.perf_counter()\n"
        "with Pool(3) as pool: list(pool.map(lambda f: f(np.uint64(1)), (mix64, unit, lambda x: unit_draw(x, 2))))\n"
        "print(COMPILING.seconds(), time.perf_counter() - begin)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def spent() -> tuple[float, float]:
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
        compiling, all_of_it = map(float, done.stdout.split())
        return compiling, all_of_it

    compiling, all_of_it = spent()
    assert 0.01 < compiling <= all_of_it
    assert spent()[0] == 0


TOTAL = """
import sys, time
from pathlib import Path
import numpy as np
from numba.core import event
from graph_emb.core.compiled import njit

@njit(cache=True)
def total(values):
    s = values[0] * 0
    for k in range(len(values)):
        s += values[k] * values[k]
    return s

if __name__ == "__main__":
    place, rank, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    with event.install_recorder("numba:compile") as compiled:
        (place / f"ready {rank}").touch()
        while len(list(place.glob("ready *"))) < int(sys.argv[4]):
            time.sleep(0.001)
        sums = [int(total(np.arange(5, dtype=name))) for name in names]
    print(len(compiled.buffer) // 2, *sums)
"""


def together(folder: Path, *types: str) -> list[list[int]]:
    """How many signatures each process compiled, and its sums; all begin at the same moment."""
    place = Path(tempfile.mkdtemp(dir=folder))
    words = [sys.executable, str(folder / "kernel.py"), str(place)]
    path = {**os.environ, "PYTHONPATH": str(Path(graph_emb.__file__).parents[1])}
    running = [
        subprocess.Popen([*words, str(rank), names, str(len(types))], stdout=subprocess.PIPE, text=True, env=path)
        for rank, names in enumerate(types)
    ]
    said = [process.communicate(timeout=300)[0].split() for process in running]
    assert [process.returncode for process in running] == [0] * len(types)
    return [[int(number) for number in one] for one in said]


def test_processes_that_start_at_once_compile_each_kernel_once_and_lose_none(tmp_path: Path) -> None:
    """Each compiled for itself, and the files of numba's cache were written by all without a lock."""
    (tmp_path / "kernel.py").write_text(TOTAL)
    first = together(tmp_path, "int64", "int64")
    assert [one[1:] for one in first] == [[30], [30]]
    assert sum(one[0] for one in first) == 1
    assert sum(one[0] for one in together(tmp_path, "int32,float32,uint8", "float64,int16,uint16")) == 6
    assert together(tmp_path, "int64,int32,float32,uint8,float64,int16,uint16") == [[0, *[30] * 7]]
    assert not list((tmp_path / "__pycache__").glob("*.lock"))


def test_a_process_that_was_stopped_while_it_compiled_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.1)
    monkeypatch.setattr(compiled, "AT_MOST", 0.1)
    (tmp_path / "stopped.py").write_text(TOTAL)
    kernel = runpy.run_path(str(tmp_path / "stopped.py"))["total"]
    cache = Path(kernel._cache._cache_file._cache_path)
    cache.mkdir(exist_ok=True)
    held = os.open(cache, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as a stopped process would
    assert kernel(np.arange(5)) == 30
    os.close(held)
    assert list(cache.glob("*.nbi"))

"""Fixtures shared by all tests."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Before OpenMP and OpenBLAS are loaded: their idle threads otherwise spin for 5 and 25 milliseconds after each loop
# and product that they shared, while those of other workers wait for a core. With 10,000 looks before they sleep, tests
# of graph networks take three times as long beside busy processes; with none, an epoch four times where cores are free.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

from graph_emb.transport.runtime import init, shutdown
from tests import warm
from tests.ranks import Ranks

CHECKOUT = Path(__file__).resolve().parents[1]
LONGEST = [
    "run/launch/test_many_hosts", "faults/test_job_faults", "optim/test_rules", "partition/test_killed",
    "run/test_own_parts", "docs/test_tutorials", "run/test_parallel", "models/kge/test_training",
    "checkpoint/test_kills", "partition/streaming/test_building", "compat/test_fbgemm", "table/tier/test_shard",
    "docs/test_code_blocks", "run/test_row_options", "examples/test_dgl_scripts", "run/test_multilevel_triples",
    "test_push_handlers", "transport/test_every_option", "test_state_dtype", "models/skipgram/test_blogcatalog",
    "models/gnn/test_distributed", "transport/kvstore/test_dgl", "transport/kvstore/test_growing",
    "run/launch/test_train_on_hosts", "test_wheel", "tuning/test_search", "fuzz/test_fuzz", "transport/test_job",
    "models/gnn/test_objectives", "run/test_resume", "examples/test_scripts", "examples/test_jobs",
    "run/test_new_nodes", "run/test_cost", "compat/test_fbgemm_defects", "formats/test_warm_start",
    "transport/kvstore/test_laws", "faults/test_small_machines", "models/gnn/test_own_network",
    "transport/test_collective", "transport/kvstore/test_faults", "models/skipgram/test_from_files",
    "transport/test_growing_ranks", "models/kge/test_buckets", "run/test_stored_triples", "run/launch/test_restarts",
    "table/tier/test_kept", "run/launch/test_meeting", "transport/test_lockstep", "partition/test_cli",
    "transport/test_local_sgd_rows", "test_bags", "run/test_partition_dataset", "run/families/test_line", "test_lookup",
    "transport/test_frozen", "checkpoint/test_deltas", "core/test_compiled", "partition/test_dist_graph",
    "cli/test_main", "graph/test_one_graph", "faults/test_io_faults", "checkpoint/test_damage",
    "partition/test_trainers", "run/families/test_metapath", "test_dockerfile",
]  # fmt: skip
"""Files of 15 seconds or more in a fresh clone. Workers take whole files: one that begins last is waited for by all."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what the tests start: a shell's background job ignores it, and so would all its children.

    All workers are forks of one warm process, and so are their tests' processes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if warm.PLACE not in os.environ:
        server = warm.server()
        os.environ[warm.PLACE] = server.__enter__()
        config.add_cleanup(lambda: server.__exit__(None, None, None))
    subprocess.Popen = warm.Cold  # type: ignore[misc]  # a worker is a fork of the warm process, which has the other


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers start warm, too: each imported torch, DGL and graph_emb anew."""
    subprocess.Popen = warm.Popen  # type: ignore[misc]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the files of tests, each worker another part of them first.

    In a fresh clone pytest compiles each file for the process that imports it first. All workers collect in one order:
    they would compile all of them at the same time, each for itself.
    """
    found: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not found:
        return
    asked = [session.config.invocation_params.dir / word.partition("::")[0] for word in session.config.args]
    below = [file for place in asked for file in (sorted(place.glob("**/test_*.py")) if place.is_dir() else [place])]
    files = [file for file in dict.fromkeys(below) if file.is_relative_to(CHECKOUT / "tests")]
    first = len(files) * int(found["workerid"].removeprefix("gw")) // found["workercount"]
    for file in (*files[first:], *files[:first]):
        with contextlib.suppress(pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(CHECKOUT).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files (``--no-loadscope-reorder`` keeps the order; xdist's own is the number of tests)."""
    place = {CHECKOUT / "tests" / f"{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Ten thousand tests live as long as their worker: no collection of garbage looks through them again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """End the processes that clusters left waiting, while the warm process that they are forked from is there.

    Its end kills them; ``close_idle`` at the interpreter's exit, which is later, found them ended with 255.
    """
    cluster = sys.modules.get("tests.transport.kvstore.cluster")
    if cluster is not None:
        cluster.close_idle()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs: $GRAPH_EMB_DATA, else ../shared/data beside the checkout."""
    folder = Path(os.environ.get("GRAPH_EMB_DATA", CHECKOUT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set GRAPH_EMB_DATA")
    return folder


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes that stand for ranks, shared by all tests that need several."""
    made = Ranks()
    yield made
    made.close()


@pytest.fixture
def warm_starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python programs start warm (see ``tests/warm.py``), but not those of tests that are marked ``cold``."""
    if request.node.get_closest_marker("cold") is None:
        monkeypatch.setattr(subprocess, "Popen", warm.Popen)


@pytest.fixture
def fresh_mode() -> Iterator[None]:
    """No mode before and after the test."""
    shutdown()
    yield
    shutdown()


@pytest.fixture(scope="module")
def idle_servers() -> Iterator[None]:
    """After the tests of a file the processes end that waited to be servers."""
    from tests.transport.kvstore.cluster import close_idle

    yield
    close_idle()


@pytest.fixture
def one_dgl_graph() -> Iterator[None]:
    """One test at a time on this machine: DGL's servers of two graphs share the memory of columns of one name."""
    with Path(tempfile.gettempdir(), "graph_emb-tests-dgl-graph.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def local_mode() -> Iterator[None]:
    """Local mode, whatever an earlier test began."""
    shutdown()
    init(mode="local")
    yield
    shutdown()

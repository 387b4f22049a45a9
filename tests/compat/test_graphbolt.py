"""The stand-in for dgl.graphbolt, on a make-believe dgl package and on the installed one."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graph_emb.compat import graphbolt, prepare
from graph_emb.core.errors import CompatError

LIBRARY = f"libgraphbolt_pytorch_{torch.__version__.split('+')[0]}.so"
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names a Linux library")


@pytest.fixture
def dgl_folder(tmp_path: Path) -> Path:
    """A dgl package with the sources of graphbolt, which import torchdata, and no library."""
    sources = tmp_path / "dgl" / "graphbolt"
    sources.mkdir(parents=True)
    (sources / "base.py").write_text("from torchdata.datapipes.iter import IterDataPipe\n")
    return tmp_path / "dgl"


@pytest.fixture
def stub() -> Iterator[graphbolt.StubModule]:
    """The stand-in among the imported modules, as `import dgl` leaves it."""
    module = graphbolt.StubModule(graphbolt.MODULE, "the library is missing")
    before = sys.modules.get(graphbolt.MODULE)
    sys.modules[graphbolt.MODULE] = module
    yield module
    del sys.modules[graphbolt.MODULE]
    if before is not None:
        sys.modules[graphbolt.MODULE] = before


def test_a_dgl_without_graphbolt_gets_no_stand_in(tmp_path: Path) -> None:
    assert graphbolt.why_unavailable([tmp_path]) is None


@linux_only
def test_a_missing_library_is_named(dgl_folder: Path) -> None:
    assert LIBRARY in str(graphbolt.why_unavailable([dgl_folder]))


@linux_only
def test_missing_datapipes_are_named(dgl_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dgl_folder / "graphbolt" / LIBRARY).touch()
    monkeypatch.setitem(sys.modules, "torchdata", None)
    assert "torchdata.datapipes" in str(graphbolt.why_unavailable([dgl_folder]))


@linux_only
def test_a_graphbolt_that_can_load_is_left_alone(dgl_folder: Path) -> None:
    (dgl_folder / "graphbolt" / LIBRARY).touch()
    (dgl_folder / "graphbolt" / "base.py").write_text("import torch\n")  # dgl 2.4 carries its own datapipes
    assert graphbolt.why_unavailable([dgl_folder]) is None
    assert graphbolt.GraphboltFinder().find_spec(graphbolt.MODULE, [str(dgl_folder)]) is None


@linux_only
def test_a_library_in_dgls_own_search_path_counts(
    dgl_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dgl_folder / "graphbolt" / "base.py").write_text("import torch\n")
    (tmp_path / "build" / "graphbolt").mkdir(parents=True)
    (tmp_path / "build" / "graphbolt" / LIBRARY).touch()
    monkeypatch.setenv("DGL_LIBRARY_PATH", str(tmp_path / "build"))
    assert graphbolt.why_unavailable([dgl_folder]) is None


def test_using_a_name_says_why_and_what_works(stub: graphbolt.StubModule) -> None:
    for use in (
        lambda: stub.ItemSampler([1], batch_size=1),
        lambda: stub.FusedCSCSamplingGraph.csc_indptr,
        lambda: type("Mine", stub.SubgraphSampler.__mro_entries__(()), {}),
    ):
        with pytest.raises(CompatError, match=r"is missing; use dgl\.dataloading and dgl\.sampling"):
            use()


def test_a_subclass_is_refused(stub: graphbolt.StubModule) -> None:
    with pytest.raises(CompatError, match=r"dgl\.graphbolt\.MiniBatch"):

        class Mine(stub.MiniBatch):  # type: ignore[name-defined,misc]
            pass


def test_a_submodule_is_refused(stub: graphbolt.StubModule) -> None:
    prepare()
    with pytest.raises(CompatError, match=r"dgl\.graphbolt\.impl: the library is missing"):
        importlib.import_module("dgl.graphbolt.impl")


def test_isinstance_of_a_name_is_false(stub: graphbolt.StubModule) -> None:
    """dgl 2.1.0 asks isinstance(graph, gb.FusedCSCSamplingGraph) of every graph a server loads."""
    assert not isinstance(torch.zeros(1), stub.FusedCSCSamplingGraph)


def test_pickle_of_a_function_without_module_still_works(stub: graphbolt.StubModule) -> None:
    """pickle asks every module for `relu`, because torch.relu does not say where it lives."""
    assert pickle.loads(pickle.dumps(torch.relu)) is torch.relu


def test_probes_are_no_use(stub: graphbolt.StubModule) -> None:
    assert not hasattr(stub, "__file__")
    assert not hasattr(stub.ItemSet, "__wrapped__")
    assert "unavailable dgl.graphbolt.ItemSet" in repr(copy.copy(stub.ItemSet))


def test_prepare_twice_installs_one_finder() -> None:
    prepare()
    prepare()
    assert sum(isinstance(finder, graphbolt.GraphboltFinder) for finder in sys.meta_path) == 1

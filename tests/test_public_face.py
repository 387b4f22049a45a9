"""What `import graph_emb` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.formats.embedding_files import save_embeddings


@pytest.mark.parametrize("name", ge.__all__)
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(ge, name) is not None
    assert name in dir(ge)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="SparseAdgrad"):
        ge.SparseAdgrad  # noqa: B018


def test_the_import_brings_no_heavy_package_with_it() -> None:
    code = "import sys, graph_emb; print(sorted({'torch', 'numba', 'dgl', 'ogb', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_launcher_is_ready_without_numba() -> None:
    """It imported the tables' code, to look for ports and to check a number of trainers: 0.8 s of CPU time more."""
    code = (
        "import sys; from graph_emb.run.launch import job; from graph_emb.transport.kvstore import layout\n"
        "print(sorted({'torch', 'numba', 'scipy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_info_describes_graphs_runs_and_embeddings_without_torch(tmp_path: Path) -> None:
    """It imported torch, 1 s of CPU time, for the checkpoints of other commands."""
    (tmp_path / "graph.csv").write_text("a,b\nb,c\n", encoding="utf-8")
    save_embeddings(tmp_path / "rows", np.ones((3, 2), np.float32), ["a", "b", "c"], ["npy", "parquet", "word2vec"])
    code = (
        "import sys; from graph_emb.cli.main import main\n"
        "assert all(main(['info', place]) == 0 for place in ('graph.csv', 'rows', 'rows/embeddings.parquet'))\n"
        "print(sorted({'torch', 'numba', 'dgl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_first_result_brings_neither_scikit_learn_nor_pandas_nor_a_compiler_with_it() -> None:
    """The estimators inherited from scikit-learn's classes: 0.9 s before the first row, for pandas and scipy.stats."""
    code = (
        "import sys, networkx as nx, graph_emb as ge\n"
        "assert ge.DeepWalk(dim=4, num_walks=1).fit_transform(nx.karate_club_graph()).shape == (34, 4)\n"
        "heavy = {'sklearn', 'pandas', 'scipy.stats', 'scipy.optimize', 'torch._dynamo', 'sympy', 'dgl'}\n"
        "ours = {'graph_emb.estimators.triples', 'graph_emb.run.families.gnn', 'graph_emb.ogb'}\n"
        "print(sorted((heavy | ours) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_step_brings_no_compiler_with_it() -> None:
    """torch.optim.Optimizer.add_param_group imports torch._dynamo: 1.2 s of CPU time in every trainer."""
    code = (
        "import sys, torch, graph_emb as ge\n"
        "emb = ge.DistEmbedding(4, 2)\n"
        "opt = ge.SparseAdagrad([emb], lr=0.5)\n"
        "emb(torch.tensor([1, 3])).sum().backward()\n"
        "opt.step()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

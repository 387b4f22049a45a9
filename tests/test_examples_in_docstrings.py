"""Every ``Example`` of a public docstring runs, and every public object that should have one has it."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.compat.fbgemm import SplitTableBatchedEmbeddingBagsCodegen
from graph_emb.evaluate.link_prediction import evaluate_link, hits
from graph_emb.evaluate.node_classification import cluster_agreement, nearest_nodes, node_classification
from graph_emb.evaluate.ranks import rank
from graph_emb.evaluate.split_accuracy import split_accuracy
from graph_emb.evaluate.triple_ranks import rank_triples
from graph_emb.models.gnn.edge_message import EdgeMessageLayer
from graph_emb.models.gnn.networks import RGCN, SAGE
from graph_emb.models.gnn.own_network import train_network
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.scorers import ComplEx, DistMult, Reciprocal, RotatE, SimplE, TransE
from graph_emb.models.kge.training import train_kge
from graph_emb.models.links.training import LinkPredictor, train_link_predictor
from graph_emb.models.skipgram.line import train_line
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.models.spectral.factorise import spectral_rows
from graph_emb.sampling.metapath_walks import Metapath
from graph_emb.sampling.negatives import NegativeSampler, NonEdges
from graph_emb.sampling.walks import EdgeSampler, WalkSampler

TABLES = [ge.DistEmbedding, ge.lookup, SplitTableBatchedEmbeddingBagsCodegen]
OPTIMIZERS = [
    ge.SparseSGD,
    ge.SparseAdagrad,
    ge.SparseRowAdagrad,
    ge.SparseAdam,
    ge.SparseRowAdam,
    ge.SparseAdamW,
    ge.SparseLAMB,
    ge.SparseRowLAMB,
    ge.SparseLARS,
]
MODELS = [
    SkipGram,
    train_skipgram,
    train_line,
    train_kge,
    KGEModel,
    TransE,
    DistMult,
    ComplEx,
    SimplE,
    RotatE,
    RGCN,
    SAGE,
    EdgeMessageLayer,
    train_rgcn,
    train_sage,
    train_network,
    LinkPredictor,
    train_link_predictor,
    spectral_rows,
    Reciprocal,
]
SAMPLERS = [
    WalkSampler,
    EdgeSampler,
    NegativeSampler,
    NonEdges,
    Metapath,
]
EVALUATION = [
    rank,
    hits,
    evaluate_link,
    node_classification,
    split_accuracy,
    cluster_agreement,
    nearest_nodes,
    rank_triples,
]
FUNCTIONS = [ge.in_step, ge.push_handlers.Adagrad, ge.save_checkpoint, ge.load_checkpoint, ge.export_checkpoint]
PUBLIC: list[Any] = [*TABLES, *OPTIMIZERS, *MODELS, *SAMPLERS, *EVALUATION, *FUNCTIONS]
"""Objects whose docstrings carry a runnable ``Example``; each finds ``ge``, ``np`` and ``torch`` imported."""


@pytest.fixture(autouse=True)
def _own_mode() -> Iterator[None]:
    ge.shutdown()
    yield
    ge.shutdown()


def failures(documented: Any) -> tuple[int, str]:
    """How many examples a docstring holds, and what went wrong with them."""
    said: list[str] = []
    names = {"ge": ge, "np": np, "torch": torch}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    test = parser.get_doctest(documented.__doc__ or "", names, documented.__name__, None, None)
    runner.run(test, out=said.append)
    return len(test.examples), "".join(said)


@pytest.mark.parametrize("documented", PUBLIC, ids=lambda documented: documented.__name__)
def test_the_example_runs(documented: Any) -> None:
    count, said = failures(documented)
    assert count > 0, f"{documented.__name__} has no Example"
    assert "Example:" in documented.__doc__
    assert not said, said


def test_a_wrong_example_fails() -> None:
    def documented() -> None:
        """Example:
        >>> 1 + 1
        3
        """

    assert failures(documented)[0] == 1
    assert "Expected:" in failures(documented)[1]


def test_every_public_optimizer_is_listed() -> None:
    named = {name for name in ge.__all__ if name.startswith("Sparse") and name != "SparseOptimizer"}
    assert named == {optimizer.__name__ for optimizer in OPTIMIZERS}

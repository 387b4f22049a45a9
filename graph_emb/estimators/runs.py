"""The estimator of every model, and that of a run folder."""

from __future__ import annotations

from pathlib import Path

from graph_emb.estimators.base import GraphEstimator
from graph_emb.estimators.networks import RGCN, GraphSAGE, MatrixFactorization
from graph_emb.estimators.nodes import LINE, DeepWalk, Metapath2Vec, NetMF, Node2Vec, ProNE
from graph_emb.estimators.triples import ComplEx, DistMult, RotatE, SimplE, TransE
from graph_emb.formats.network_files import load_network
from graph_emb.run.run_folder import read_run

ESTIMATORS: dict[str, type[GraphEstimator]] = {
    kind.model: kind
    for kind in (
        *(DeepWalk, Node2Vec, LINE, NetMF, ProNE, Metapath2Vec),
        *(TransE, DistMult, ComplEx, RotatE, SimplE),
        *(RGCN, GraphSAGE, MatrixFactorization),
    )
}
"""By model."""


def load_run(folder: str | Path) -> GraphEstimator:
    """The fitted estimator of a run folder: of ``graph-emb train``, of ``ge.pipeline(out=...)`` or of ``save``.

    Raises:
        ConfigError: the folder is no run.
        DataError: its files are damaged.
    Example:
        >>> ge.pipeline("deepwalk", dataset="digits", out="runs/digits", dim=8, num_walks=1, evaluate=False)
        >>> ge.load_run("runs/digits").transform([3, 7]).shape
        (2, 8)
    """
    config, metrics, tables = read_run(folder)
    return ESTIMATORS[config.model.name].of_run(config, metrics, tables, load_network(folder))

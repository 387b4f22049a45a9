"""Models as estimators of scikit-learn: a graph goes in, rows by name come out.

A class is made for each model of ``graph_emb.config.MODELS``; its parameters, with their defaults, are the fields of
the model's settings and the fields of a run that change its rows, so that there is no second list of them.
"""

from __future__ import annotations

from pathlib import Path

from graph_emb.estimators.base import GraphEstimator
from graph_emb.estimators.networks import LinkEstimator, NetworkEstimator
from graph_emb.estimators.nodes import NodeEstimator, PathEstimator
from graph_emb.estimators.triples import TripleEstimator
from graph_emb.formats.network_files import load_network
from graph_emb.run.run_folder import read_run

DeepWalk = NodeEstimator.of("DeepWalk", "deepwalk", __name__)
Node2Vec = NodeEstimator.of("Node2Vec", "node2vec", __name__)
LINE = NodeEstimator.of("LINE", "line", __name__)
NetMF = NodeEstimator.of("NetMF", "netmf", __name__)
ProNE = NodeEstimator.of("ProNE", "prone", __name__)
Metapath2Vec = PathEstimator.of("Metapath2Vec", "metapath2vec", __name__)
TransE = TripleEstimator.of("TransE", "transe", __name__)
DistMult = TripleEstimator.of("DistMult", "distmult", __name__)
ComplEx = TripleEstimator.of("ComplEx", "complex", __name__)
RotatE = TripleEstimator.of("RotatE", "rotate", __name__)
SimplE = TripleEstimator.of("SimplE", "simple", __name__)
RGCN = NetworkEstimator.of("RGCN", "rgcn", __name__)
GraphSAGE = NetworkEstimator.of("GraphSAGE", "sage", __name__)
MatrixFactorization = LinkEstimator.of("MatrixFactorization", "mf", __name__)

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


__all__ = [*(kind.__name__ for kind in ESTIMATORS.values()), "ESTIMATORS", "load_run"]

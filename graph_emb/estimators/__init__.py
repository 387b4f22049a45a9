"""Models as estimators of scikit-learn: a graph goes in, rows by name come out.

A class is made for each model of ``graph_emb.config.MODELS``; its parameters, with their defaults, are the fields of
the model's settings and the fields of a run that change its rows, so that there is no second list of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graph_emb.core.imports import resolve

if TYPE_CHECKING:
    from graph_emb.estimators.networks import RGCN, GraphSAGE, MatrixFactorization
    from graph_emb.estimators.nodes import LINE, DeepWalk, Metapath2Vec, NetMF, Node2Vec, ProNE
    from graph_emb.estimators.runs import ESTIMATORS, load_run
    from graph_emb.estimators.triples import ComplEx, DistMult, RotatE, SimplE, TransE

# Found on first use: a walk needs none of the modules of triples and graph networks.
_HOMES = {
    "networks": ("RGCN", "GraphSAGE", "MatrixFactorization"),
    "nodes": ("DeepWalk", "Node2Vec", "LINE", "NetMF", "ProNE", "Metapath2Vec"),
    "runs": ("ESTIMATORS", "load_run"),
    "triples": ("TransE", "DistMult", "ComplEx", "RotatE", "SimplE"),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that sees this takes every name for one of the module

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'graph_emb.estimators' has no attribute {name!r}")
        value = globals()[name] = resolve(f"graph_emb.estimators.{_LAZY[name]}:{name}")
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ComplEx",
    "DeepWalk",
    "DistMult",
    "ESTIMATORS",
    "GraphSAGE",
    "LINE",
    "MatrixFactorization",
    "Metapath2Vec",
    "NetMF",
    "Node2Vec",
    "ProNE",
    "RGCN",
    "RotatE",
    "SimplE",
    "TransE",
    "load_run",
]

"""Every recipe by its name, "data set/model": sections of a run's configuration with the published hyper-parameters.

The docstring of the data set's script in examples/ogb says what differs from what was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph_emb.core.errors import unknown_name

Sections = dict[str, Any]
"""Of ``RunConfig``; what they leave out is the model's default."""


def _deepwalk(name: str = "deepwalk", **model: Any) -> Sections:
    """DGL's examples/pytorch/ogb/deepwalk; (u + v)_i * (u + v)_j holds u_i * v_j, by which skip-gram scores an edge."""
    model = {"name": name, "num_negatives": 1, "negative_power": 0.0, "tables": 2, **model}
    return {"model": model, "train": {"lr": 0.05}, "output": {"context": "add"}}


def _pyg(context: int, epochs: int, name: str = "node2vec", **model: Any) -> Sections:
    """PyG's node2vec: a context is the start and the ``context - 1`` nodes after it, all alike."""
    walks = {"walk_length": 40, "p": 1.0, "q": 1.0} if name == "node2vec" else {}
    pairs = {"window": context - 1, "window_weighting": "uniform", "num_negatives": 1, "negative_power": 0.0}
    return {"model": {"name": name, "tables": 1, **walks, **pairs, **model}, "train": {"lr": 0.025, "epochs": epochs}}


def _line(num_negatives: int, draws_per_edge: int) -> Sections:
    """DGL's examples/pytorch/ogb/line: both orders, 64 numbers each."""
    return {"model": {"name": "line", "dim": 128, "num_negatives": num_negatives, "draws_per_edge": draws_per_edge}}


def _mf(dim: int, lr: float = 0.01, **model: Any) -> Sections:
    return {"model": {"name": "mf", "dim": dim, **model}, "train": {"lr": lr}}


def _judged(rows: Sections, network: str, settings: Mapping[str, Any], features: str = "none") -> Sections:
    """Rows under OGB's network, "predictor" of links or "mlp" of nodes, which may read features before the rows."""
    return {**rows, "evaluate": {network: dict(settings), "node_features": features}}


def _links(predictor: Mapping[str, Any], features: str = "raw", **models: Sections) -> dict[str, Sections]:
    return {name: _judged(rows, "predictor", predictor, features) for name, rows in models.items()}


def _nodes(mlp: Mapping[str, Any], **models: Sections) -> dict[str, Sections]:
    return {name: _judged(rows, "mlp", mlp, "raw") for name, rows in models.items()}


def _ddi() -> dict[str, Sections]:
    walks: Sections = {"window": 2, "num_walks": 50, "walk_length": 80}
    return {
        **_links(
            {"epochs": 100},
            features="none",
            deepwalk=_deepwalk(**walks),
            # Walks that lead away (q below 1): q = 1 and 4 had a lower validation value.
            node2vec=_deepwalk("node2vec", **walks, p=1.0, q=0.25),
            mf=_mf(256, std=0.1),
        ),
        "sage": {"model": {"name": "sage"}},
    }


def _collab() -> dict[str, Sections]:
    judged = {"epochs": 200, "eval_every": 1, "metrics": ("hits@10", "hits@50", "hits@100"), "select": "hits@50"}
    return {
        **_links({"dropout": 0.0, **judged}, node2vec=_pyg(20, epochs=2), deepwalk=_deepwalk(window=2, num_walks=50)),
        **_links(judged, features="none", mf=_mf(256)),
    }


def _ppa() -> dict[str, Sections]:
    judged = {"eval_every": 1, "metrics": ("hits@10", "hits@50", "hits@100"), "select": "hits@100", "dropout": 0.0}
    walks: Sections = {"node2vec": _pyg(20, epochs=2), "deepwalk": _deepwalk(window=1, num_walks=30, walk_length=80)}
    return {
        **_links({"epochs": 20, **judged}, **walks),
        **_links({"lr": 0.005, "epochs": 1000, **judged}, features="none", mf=_mf(256, lr=0.005)),
    }


def _citation2() -> dict[str, Sections]:
    judged = {"eval_every": 10, "metrics": ("mrr",), "select": "mrr", "negatives": "targets"}
    walks: Sections = {"node2vec": _pyg(20, epochs=1), "deepwalk": _deepwalk(window=2, walk_length=80)}
    return {
        **_links({"dropout": 0.0, "epochs": 100, **judged}, **walks),
        **_links({"hidden_dim": 128, "epochs": 300, **judged}, features="none", mf=_mf(96, std=0.2)),
    }


def _vessel() -> dict[str, Sections]:
    judged = {"metrics": ("rocauc",), "select": "rocauc", "negatives": "given"}
    common = {"lr": 0.001, "epochs": 100, "eval_every": 1, **judged}
    node2vec = _pyg(5, epochs=2, dim=64, walk_length=5)
    return {
        **_links({"hidden_dim": 64, "dropout": 0.2, **common}, features="none", mf=_mf(64, lr=0.001)),
        **_links({"num_layers": 4, "dropout": 0.0, **common}, features="unit columns", node2vec=node2vec),
    }


def _arxiv() -> dict[str, Sections]:
    citations = {"model": {"name": "deepwalk", "window": 5, "num_negatives": 5}, "train": {"lr": 0.05}}
    return {
        "deepwalk": _judged(citations, "mlp", {}),
        **_nodes({}, node2vec=_pyg(20, epochs=5, walk_length=80), line=_line(5, 860)),
    }


def _products() -> dict[str, Sections]:
    mlp = {"batch_norm": False, "dropout": 0.0, "epochs": 300}
    return _nodes(mlp, node2vec=_pyg(20, epochs=1), line=_line(1, 48))


def _proteins() -> dict[str, Sections]:
    mlp = {"batch_norm": False, "epochs": 1000, "eval_every": 5}
    return _nodes(mlp, node2vec=_pyg(20, epochs=1, walk_length=80), line=_line(1, 15))


def _mag() -> dict[str, Sections]:
    rgcn = {"name": "rgcn", "dim": 128, "hidden_dim": 64, "fanouts": (25, 20), "within_types": "both ways"}
    path = "author-paper-field_of_study-paper-author-institution-author-paper-[cites]-paper-author"
    walks: Sections = {"name": "metapath2vec", "metapath": path, "num_walks": 5, "walk_length": 64}
    mlp = {"batch_norm": False, "dropout": 0.0, "epochs": 500}
    return {
        "rgcn": {"model": rgcn, "train": {"epochs": 3, "batch_size": 1024}},
        **_nodes(mlp, metapath2vec=_pyg(7, epochs=5, **{**walks, "num_negatives": 5})),
    }


def _knowledge_graph(
    dim: int, epochs: int, valid_every: int, transe_margin: float, rotate_margin: float
) -> dict[str, Sections]:
    """OGB's run.py; its margin of 500 only sets the range of the first rows where a score is a product."""
    steps = {"batch_size": 512, "epochs": epochs}
    shared = {"dim": dim, "num_negatives": 128, "chunk_size": 128, "subsampling": True, "valid_every": valid_every}
    product = {"loss": "self_adversarial", "init_std": 502 / dim / 3**0.5, "n3": 2e-6}
    own: Sections = {"transe": {"margin": transe_margin}, "distmult": product, "complex": product}
    return {
        name: {
            "model": {"name": name, "patience": 0, **shared, **model},
            "train": {"rule": "adam", "lr": 1e-3 if "n3" in model else 1e-4, **steps},
        }
        for name, model in {**own, "rotate": {"margin": rotate_margin}}.items()
    }


RECIPES: Mapping[str, Sections] = {
    f"{dataset}/{model}": {"dataset": {"name": dataset}, **sections}
    for dataset, models in {
        "ogbl-ddi": _ddi(),
        "ogbl-collab": _collab(),
        "ogbl-ppa": _ppa(),
        "ogbl-citation2": _citation2(),
        "ogbl-vessel": _vessel(),
        "ogbl-biokg": _knowledge_graph(2000, 32, 4, transe_margin=20.0, rotate_margin=20.0),
        "ogbl-wikikg2": _knowledge_graph(500, 6, 1, transe_margin=30.0, rotate_margin=5.0),
        "ogbn-arxiv": _arxiv(),
        "ogbn-products": _products(),
        "ogbn-proteins": _proteins(),
        "ogbn-mag": _mag(),
    }.items()
    for model, sections in models.items()
}
"""Every recipe by its name, ``<data set>/<model>``; ``graph_emb.pipeline(config=RECIPES[name], root=...)`` runs it."""


def recipes_of(dataset: str) -> dict[str, Sections]:
    """The recipes of a data set by model; the first is the default of its script."""
    parts = ((name.partition("/"), sections) for name, sections in RECIPES.items())
    return {model: sections for (found, _, model), sections in parts if found == dataset}


def recipe_named(name: str) -> tuple[str, str]:
    """Data set and model of a recipe's name.

    Raises:
        ConfigError: unknown; the message names the nearest.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    dataset, _, model = name.partition("/")
    return dataset, model

"""Every recipe by its name, "data set/model": sections of a run's configuration with the published hyper-parameters.

The docstring of the data set's script in examples/ogb says what differs from what was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
        # PLNLP's main.py with its README's settings.
        "pairwise": {
            "model": {
                "name": "sage",
                "dim": 512,
                "hidden_dim": 512,
                "dropout": 0.3,
                "loss": "auc",
                "num_negatives": 3,
                "clip_norm": 2.0,
            },
            "train": {"lr": 0.001, "epochs": 500},
        },
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


BOARD, DGL = "OGB leaderboard", "DGL examples/pytorch/ogb"
Value = float | tuple[float, float] | None


@dataclass(frozen=True)
class Published:
    """One row: ``test`` and ``valid`` are (mean, std), a mean alone, or None where not published."""

    method: str
    test: Value
    valid: Value = None
    parameters: int | None = None
    source: str = BOARD


PUBLISHED: dict[str, tuple[Published, ...]] = {
    "ogbl-ddi": (
        Published("DeepWalk", (0.2642, 0.0610), (0.4132, 0.0169), 1_543_913, DGL),
        Published("DeepWalk, second row", (0.2246, 0.0290)),
        Published("node2vec", (0.2326, 0.0209), (0.3292, 0.0121), 645_249),
        Published("MF", (0.1368, 0.0475), (0.3370, 0.0264), 1_224_193),
        Published("GraphSAGE, learned inputs", (0.5390, 0.0474), 0.6262),
        Published("PLNLP, learned inputs", (0.9088, 0.0313)),
        Published("GCN, learned inputs", (0.3707, 0.0507), 0.5550),
        Published("Common neighbours", 0.1773, 0.0947),
    ),
    "ogbl-collab": (
        Published("DeepWalk", (0.5037, 0.0034), 0.6061, None, DGL),
        Published("node2vec", (0.4888, 0.0054), 0.5703, 30_322_945),
        Published("MF", (0.3886, 0.0029), 0.4896),
        Published("Common neighbours", 0.6137),
        Published("HOP-REC, validation edges used", 0.7012),
    ),
    "ogbl-ppa": (
        Published("DeepWalk", (0.2888, 0.0153), None, None, DGL),
        Published("node2vec", (0.2226, 0.0083), 0.2253, 73_878_913),
        Published("MF", (0.3229, 0.0094), 0.3228),
        Published("Resource allocation", 0.4933),
    ),
    "ogbl-citation2": (
        Published("node2vec", (0.6141, 0.0011), None, 374_911_105),
        Published("MF", (0.5186, 0.0443)),
        Published("Adamic-Adar", 0.5189),
        Published("GraphSAGE", 0.8260),
    ),
    "ogbl-vessel": (
        Published("MF", (0.4997, 0.0005)),
        Published("node2vec + GCN", 0.4954),
        Published("MLP on coordinates", 0.4794),
        Published("SEAL", 0.8050),
    ),
    "ogbl-biokg": (
        Published("TransE", (0.7452, 0.0004)),
        Published("DistMult", (0.8043, 0.0003)),
        Published("ComplEx", (0.8095, 0.0007)),
        Published("RotatE", (0.7989, 0.0004)),
    ),
    "ogbl-wikikg2": (
        Published("TransE, width 500", (0.4256, 0.0030), 0.4272),
        Published("DistMult, width 500", (0.3729, 0.0045), 0.3506),
        Published("ComplEx, width 250", (0.4027, 0.0027), 0.3759),
        Published("RotatE, width 250", (0.4332, 0.0025), 0.4353),
        Published("TransE, width 100", (0.2622, 0.0045)),
        Published("DistMult, width 100", (0.3447, 0.0082)),
        Published("ComplEx, width 50", (0.3804, 0.0022)),
        Published("RotatE, width 50", (0.2530, 0.0034)),
    ),
    "ogbn-arxiv": (
        Published("node2vec, with features", (0.7007, 0.0013), 0.7129, 21_818_792),
        Published("LINE, with features", (0.7047, 0.0019), (0.7176, 0.0008), 33_166_231, DGL),
        Published("MLP on features", 0.5550),
        Published("GCN", 0.7174),
    ),
    "ogbn-products": (
        Published("node2vec, with features", (0.7249, 0.0010), 0.9032, 313_612_207),
        Published("LINE, with features", (0.7252, 0.0029), (0.8957, 0.0009), 477_706_544, DGL),
        Published("MLP on features", 0.6106),
        Published("GCN", 0.7564),
    ),
    "ogbn-proteins": (
        Published("node2vec, with features", (0.6881, 0.0065), 0.7007, 17_094_000),
        Published("LINE, with features", (0.6207, 0.0125), (0.7050, 0.0129), 25_983_172, DGL),
        Published("MLP on features", 0.7204),
    ),
    "ogbn-mag": (
        Published("metapath2vec, with features", (0.3544, 0.0036), 0.3506),
        Published("R-GCN, full batch", 0.3977),
        Published("R-GCN, neighbour sampling", (0.4678, 0.0067), 0.4761),
        Published("R-GCN, learned inputs", (0.4781, 0.0037), 0.4875, 154_366_772, DGL),
        Published("MLP on features", 0.2692),
    ),
}
"""By data set."""


def rows_of(dataset: str) -> tuple[Published, ...]:
    """Published rows of a data set; none of one that no row is known of."""
    return PUBLISHED.get(dataset, ())


def text_of(value: Value) -> str:
    """As a leaderboard writes it: ``0.2642 ± 0.0610``."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value[0]:.4f} ± {value[1]:.4f}"

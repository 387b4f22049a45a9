"""A graph of users and tags whose classes only the edges tell, links within groups, and triples of groups."""

from __future__ import annotations

import numpy as np

from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.tasks import LinkTask, NodeTask

USERS, TAGS, CLASSES, TAGS_EACH = 120, 30, 3, 4


def planted(seed: int = 0, noise: float = 0.2) -> tuple[HeteroGraph, NodeTask]:
    """Users of three classes use four tags each, mostly of their own class; a third of the users is for testing."""
    rng = np.random.default_rng(seed)
    classes = np.arange(USERS) % CLASSES
    tag_class = np.where(
        rng.random((USERS, TAGS_EACH)) < noise, rng.integers(0, CLASSES, (USERS, TAGS_EACH)), classes[:, None]
    )
    tags = (rng.integers(0, TAGS // CLASSES, (USERS, TAGS_EACH)) * CLASSES + tag_class).ravel()
    users = np.repeat(np.arange(USERS), TAGS_EACH)
    graph = HeteroGraph(
        {"user": USERS, "tag": TAGS},
        {("user", "uses", "tag"): (users, tags), ("tag", "rev_uses", "user"): (tags, users)},
    )
    order = rng.permutation(USERS)
    split = {"train": order[:60], "valid": order[60:80], "test": order[80:]}
    return graph, NodeTask("user", classes, split)


def planted_links(seed: int = 0) -> tuple[HeteroGraph, LinkTask]:
    """Two groups of 20 nodes, joined within with probability 0.5; some edges and as many pairs across are held out."""
    rng = np.random.default_rng(seed)
    left, right = np.triu_indices(40, 1)
    same = left % 2 == right % 2
    edge = same & (rng.random(len(left)) < 0.5)
    edges = rng.permutation(np.stack([left, right], 1)[edge])
    others = rng.permutation(np.stack([left, right], 1)[~same])
    train, valid, test = np.split(edges, [len(edges) - 60, len(edges) - 30])
    src, dst = np.concatenate([train, train[:, ::-1]]).T
    split = {
        "train": {"edge": train},
        "valid": {"edge": valid, "edge_neg": others[:60]},
        "test": {"edge": test, "edge_neg": others[60:120]},
    }
    return HeteroGraph({"_N": 40}, {("_N", "_E", "_N"): (src, dst)}), LinkTask(split, ("rocauc", "hits@20"))


def planted_triples(seed: int = 0) -> KnowledgeGraph:
    """30 entities of three groups: relation 0 joins those of a group, 1 those of the first two; some are held out."""
    rng = np.random.default_rng(seed)
    heads, tails = (ends.ravel() for ends in np.meshgrid(np.arange(30), np.arange(30)))
    groups = heads % 3, tails % 3
    within, across = groups[0] == groups[1], np.minimum(*groups) * 2 + np.maximum(*groups) == 1
    found = [np.stack([heads, np.full(len(heads), r), tails], 1)[own] for r, own in ((0, within), (1, across))]
    triples = rng.permutation(np.concatenate(found))[:300]
    return KnowledgeGraph(
        "planted", 30, 2, dict(zip(("train", "valid", "test"), np.split(triples, [220, 260]), strict=True))
    )

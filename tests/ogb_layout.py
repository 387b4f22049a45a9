"""Tiny data sets with every file and table of OGB's own, in which groups can be told apart, so that models learn.

Nodes belong to the group ``number % G``; edges join nodes of one group, negatives nodes of different ones. Widths of
features, numbers of classes and tasks, names of types and relations are those of the real data sets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.compat.ogb.layout import write_csv, write_graph, write_split

Array = np.ndarray


def group_edges(num_nodes: int, num_groups: int, seed: int = 0) -> tuple[Array, Array]:
    """All pairs (M, 2), shuffled: those within a group of node % num_groups, and those across."""
    rng = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(num_nodes, 1), 1)
    pairs = pairs[rng.permutation(len(pairs))]
    same = pairs[:, 0] % num_groups == pairs[:, 1] % num_groups
    return pairs[same], pairs[~same]


def _finish(folder: Path, release: int = 1) -> Path:
    """What every unpacked data set has beside its tables."""
    (folder / f"RELEASE_v{release}.txt").write_text("# Release note\n")
    (folder / "mapping").mkdir()
    (folder / "mapping" / "README.md").write_text("What the ids were before they became numbers.\n")
    (folder / "processed").mkdir()  # ogb 1.3.6 writes its cache there and does not make the folder
    return folder


def _features(num_nodes: int, width: int) -> Array:
    return np.random.default_rng(7).normal(scale=0.1, size=(num_nodes, width)).round(4)


def _column(values: Any) -> Array:
    return np.asarray(values).reshape(-1, 1)


def write_ddi(root: Path) -> Path:
    """40 drugs; nothing but edges."""
    folder, (inside, across) = root / "ogbl_ddi", group_edges(40, 2)
    write_graph(folder, inside[:250].tolist(), 40)
    place = folder / "split" / "target"
    write_split(place / "train.pt", {"edge": inside[:250]})
    write_split(place / "valid.pt", {"edge": inside[250:310], "edge_neg": across[:150]})
    write_split(place / "test.pt", {"edge": inside[310:370], "edge_neg": across[150:300]})
    return _finish(folder)


def write_collab(root: Path) -> Path:
    """40 authors; a pair that wrote together in two years stands there twice, with weight and year."""
    folder, (inside, across) = root / "ogbl_collab", group_edges(40, 2, seed=1)
    train = np.concatenate([inside[:220], inside[:20]])
    weight, year = 1 + np.arange(len(train)) % 3, 2000 + np.arange(len(train)) % 18
    write_graph(folder, train.tolist(), 40)
    write_csv(folder / "raw" / "node-feat.csv.gz", _features(40, 128))
    write_csv(folder / "raw" / "edge_weight.csv.gz", _column(weight))
    write_csv(folder / "raw" / "edge_year.csv.gz", _column(year))
    place = folder / "split" / "time"
    write_split(place / "train.pt", {"edge": train, "weight": weight, "year": year})
    for part, (low, high), then in (("valid", (220, 290), 2018), ("test", (290, 360), 2019)):
        edge, size = inside[low:high], high - low
        tables = {"edge": edge, "weight": np.ones(size, np.int64), "year": np.full(size, then)}
        write_split(place / f"{part}.pt", {**tables, "edge_neg": across[low - 220 : low - 100]})
    return _finish(folder)


def write_ppa(root: Path) -> Path:
    """40 proteins; the feature is the species, one of 58."""
    folder, (inside, across) = root / "ogbl_ppa", group_edges(40, 2, seed=2)
    write_graph(folder, inside[:250].tolist(), 40)
    write_csv(folder / "raw" / "node-feat.csv.gz", np.eye(58, dtype=np.int64)[np.arange(40) % 58])
    place = folder / "split" / "throughput"
    write_split(place / "train.pt", {"edge": inside[:250]})
    write_split(place / "valid.pt", {"edge": inside[250:310], "edge_neg": across[:150]})
    write_split(place / "test.pt", {"edge": inside[310:370], "edge_neg": across[150:300]})
    return _finish(folder)


def write_citation2(root: Path) -> Path:
    """60 papers; a later one cites earlier ones, and is judged among 12 (1,000 in the real set) it does not cite."""
    folder, (inside, _) = root / "ogbl_citation2", group_edges(60, 2, seed=3)
    arcs = inside[:, ::-1]  # from the later paper to the earlier
    write_graph(folder, arcs[:600].tolist(), 60)
    write_csv(folder / "raw" / "node-feat.csv.gz", _features(60, 128))
    write_csv(folder / "raw" / "node_year.csv.gz", _column(1960 + np.arange(60)))
    place = folder / "split" / "time"
    rng = np.random.default_rng(3)
    for part, piece in (("train", arcs[:600]), ("valid", arcs[600:680]), ("test", arcs[680:760])):
        tables = {"source_node": piece[:, 0].copy(), "target_node": piece[:, 1].copy()}
        if part != "train":
            others = 2 * rng.integers(0, 30, (len(piece), 12)) + (1 - piece[:, :1] % 2)
            tables["target_node_neg"] = others
        write_split(place / f"{part}.pt", tables)
    return _finish(folder)


def write_vessel(root: Path) -> Path:
    """50 branching points of vessels: npz tables, torch tensors in the split, negatives for training as well."""
    folder, (inside, across) = root / "ogbl_vessel", group_edges(50, 2, seed=4)
    (folder / "raw").mkdir(parents=True)
    train = inside[:300]
    arrays = {
        "edge_index": train.T.copy(),
        "num_nodes_list": np.array([50]),
        "num_edges_list": np.array([300]),
        "node_feat": (1000 * _features(50, 3)).astype(np.float32),
        "edge_feat": _features(300, 3).astype(np.float32),
    }
    np.savez(folder / "raw" / "data.npz", **arrays)
    cuts = {"train": slice(300), "valid": slice(300, 380), "test": slice(380, 460)}
    for part, cut in cuts.items():
        tables = {"edge": torch.from_numpy(inside[cut]), "edge_neg": torch.from_numpy(across[cut])}
        write_split(folder / "split" / "spatial" / f"{part}.pt", tables)
    return _finish(folder)


def _write_nodes(folder: Path, split: str, label: Array, edges: Array, share: int) -> None:
    """Graph, labels and a node split: every third node is held out, ``share`` of them for validation."""
    num_nodes = len(label)
    write_graph(folder, edges.tolist(), num_nodes)
    write_csv(folder / "raw" / "node-label.csv.gz", label)
    held = np.arange(2, num_nodes, 3)
    parts = {"train": np.setdiff1d(np.arange(num_nodes), held), "valid": held[:share], "test": held[share:]}
    for part, nodes in parts.items():
        write_csv(folder / "split" / split / f"{part}.csv.gz", _column(nodes))


def write_arxiv(root: Path, *, features: bool = True) -> Path:
    """90 papers of 4 of the 40 classes, which cite within their class."""
    folder, (inside, across) = root / "ogbn_arxiv", group_edges(90, 4)
    _write_nodes(folder, "time", _column(np.arange(90) % 4), np.concatenate([inside[:400], across[:20]]), 15)
    if features:
        write_csv(folder / "raw" / "node-feat.csv.gz", _features(90, 128))
    write_csv(folder / "raw" / "node_year.csv.gz", _column(2000 + np.arange(90) % 20))
    return _finish(folder)


def write_products(root: Path) -> Path:
    """90 products of 4 of the 47 classes, bought together within their class."""
    folder, (inside, across) = root / "ogbn_products", group_edges(90, 4, seed=5)
    _write_nodes(folder, "sales_ranking", _column(np.arange(90) % 4), np.concatenate([inside[:400], across[:20]]), 15)
    write_csv(folder / "raw" / "node-feat.csv.gz", _features(90, 100))
    return _finish(folder)


def write_proteins(root: Path, *, renamed: bool = False) -> Path:
    """60 proteins with 112 functions each; edges have 8 features, nodes a species and no features.

    ``renamed``: as ogb's own loader leaves the folder, which renames species.csv.gz to node_species.csv.gz.
    """
    folder, (inside, across) = root / "ogbn_proteins", group_edges(60, 2, seed=6)
    label = (np.arange(60)[:, None] + np.arange(112)) % 2
    edges = np.concatenate([inside[:300], across[:20]])
    _write_nodes(folder, "species", label, edges, 10)
    write_csv(folder / "raw" / "edge-feat.csv.gz", np.abs(_features(len(edges), 8)))
    species = "node_species" if renamed else "species"
    write_csv(folder / "raw" / f"{species}.csv.gz", _column(np.where(np.arange(60) < 30, 3702, 4932)))
    return _finish(folder)


def _write_relations(folder: Path, num_nodes: dict[str, int], relations: dict[tuple[str, str, str], Array]) -> None:
    """Counts, triplet types, and the edges of each relation with its number; types in the order of the real file."""
    raw = folder / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [list(num_nodes), list(num_nodes.values())])
    write_csv(raw / "triplet-type-list.csv.gz", relations)
    for number, (triplet, edges) in enumerate(sorted(relations.items())):
        place = raw / "relations" / "___".join(triplet)
        write_csv(place / "edge.csv.gz", edges)
        write_csv(place / "num-edge-list.csv.gz", [[len(edges)]])
        write_csv(place / "edge_reltype.csv.gz", _column(np.full(len(edges), number)))


def _flags(path: Path, kinds: list[str], true: str) -> None:
    write_csv(path, [kinds, [kind == true for kind in kinds]])


def write_mag(root: Path) -> Path:
    """60 papers of 3 of the 349 venues; authors, fields and institutions have no features."""
    folder = root / "ogbn_mag"
    num_nodes = {"author": 30, "field_of_study": 12, "institution": 6, "paper": 60}
    rng = np.random.default_rng(8)

    def joined(left: str, right: str, count: int) -> Array:
        """Distinct pairs whose ends are equal modulo 3."""
        pairs = np.stack(np.meshgrid(np.arange(num_nodes[left]), np.arange(num_nodes[right])), -1).reshape(-1, 2)
        return rng.permutation(pairs[pairs[:, 0] % 3 == pairs[:, 1] % 3])[:count]

    relations = {
        ("author", "affiliated_with", "institution"): joined("author", "institution", 40),
        ("author", "writes", "paper"): joined("author", "paper", 150),
        ("paper", "cites", "paper"): joined("paper", "paper", 150),
        ("paper", "has_topic", "field_of_study"): joined("paper", "field_of_study", 120),
    }
    _write_relations(folder, num_nodes, relations)
    raw, kinds = folder / "raw", list(num_nodes)
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", _features(60, 128))
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", _column(2010 + np.arange(60) % 10))
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", _column(np.arange(60) % 3))
    _flags(raw / "nodetype-has-feat.csv.gz", kinds, "paper")
    _flags(raw / "nodetype-has-label.csv.gz", kinds, "paper")
    split = folder / "split" / "time"
    _flags(split / "nodetype-has-split.csv.gz", kinds, "paper")
    for part, nodes in (("train", range(36)), ("valid", range(36, 48)), ("test", range(48, 60))):
        write_csv(split / "paper" / f"{part}.csv.gz", _column(np.arange(60)[list(nodes)]))
    return _finish(folder, release=2)


def write_biokg(root: Path) -> Path:
    """Five kinds of entities and three relations; a relation joins entities whose numbers are equal modulo 2."""
    folder, rng = root / "ogbl_biokg", np.random.default_rng(9)
    num_nodes = {"disease": 12, "drug": 14, "function": 10, "protein": 16, "sideeffect": 8}
    triplets = [("disease", "disease-protein", "protein"), ("drug", "drug-protein", "protein")]
    triplets.append(("protein", "protein-function", "function"))
    rows: list[tuple[str, int, int, str, int]] = []
    for number, (head, _, tail) in enumerate(triplets):
        pairs = [(a, b) for a in range(num_nodes[head]) for b in range(num_nodes[tail]) if a % 2 == b % 2]
        rows += [(head, a, number, tail, b) for a, b in pairs]
    rows = [rows[place] for place in rng.permutation(len(rows))]
    cuts = {"train": rows[:-60], "valid": rows[-60:-30], "test": rows[-30:]}
    train = {name: [(a, b) for _, a, r, _, b in cuts["train"] if r == n] for n, name in enumerate(triplets)}
    _write_relations(folder, num_nodes, {name: np.array(pairs) for name, pairs in train.items()})
    for part, piece in cuts.items():
        head_type, head, relation, tail_type, tail = (list(column) for column in zip(*piece, strict=True))
        tables: dict[str, Any] = {"head_type": head_type, "head": np.array(head), "relation": np.array(relation)}
        tables |= {"tail_type": tail_type, "tail": np.array(tail)}
        if part != "train":  # 5 (500 in the real set) of the right type and the wrong group
            tables["head_neg"] = _wrong(tables["head"], np.array([num_nodes[kind] for kind in head_type]), rng)
            tables["tail_neg"] = _wrong(tables["tail"], np.array([num_nodes[kind] for kind in tail_type]), rng)
        write_split(folder / "split" / "random" / f"{part}.pt", tables)
    return _finish(folder)


def _wrong(right: Array, limits: Array, rng: np.random.Generator, count: int = 5) -> Array:
    """Numbers below each limit, (B, count), of the other group than ``right``; limits are even."""
    return 2 * rng.integers(0, (limits // 2)[:, None], (len(right), count)) + (1 - right % 2)[:, None]


def write_wikikg2(root: Path) -> Path:
    """40 entities and two relations in one node type: one joins equal groups, the other different ones."""
    folder, rng = root / "ogbl_wikikg2", np.random.default_rng(10)
    inside, across = group_edges(40, 2, seed=10)
    rows = np.concatenate([np.insert(inside[:250], 1, 0, axis=1), np.insert(across[:250], 1, 1, axis=1)])
    rows = rng.permutation(rows)
    cuts = {"train": rows[:380], "valid": rows[380:440], "test": rows[440:]}
    write_graph(folder, cuts["train"][:, [0, 2]].tolist(), 40)
    write_csv(folder / "raw" / "edge_reltype.csv.gz", _column(cuts["train"][:, 1]))
    for part, piece in cuts.items():
        tables = {name: piece[:, place].copy() for place, name in enumerate(("head", "relation", "tail"))}
        if part != "train":
            limits = np.full(len(piece), 40)
            tables["head_neg"] = _wrong(tables["head"], limits, rng)
            tables["tail_neg"] = _wrong(tables["tail"], limits, rng)
        write_split(folder / "split" / "time" / f"{part}.pt", tables)
    return _finish(folder)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "ogbl-ddi": write_ddi,
    "ogbl-collab": write_collab,
    "ogbl-ppa": write_ppa,
    "ogbl-citation2": write_citation2,
    "ogbl-vessel": write_vessel,
    "ogbl-biokg": write_biokg,
    "ogbl-wikikg2": write_wikikg2,
    "ogbn-arxiv": write_arxiv,
    "ogbn-products": write_products,
    "ogbn-proteins": write_proteins,
    "ogbn-mag": write_mag,
}
"""How each data set is written under a root folder."""

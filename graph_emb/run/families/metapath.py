"""metapath2vec: skip-gram on walks along a path of node types."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import torch_threads
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.typed import NODE_TYPE, EdgeType, HeteroGraph
from graph_emb.models.skipgram.bucket_steps import tables_share
from graph_emb.run import parallel
from graph_emb.run.cost import WalkLoad
from graph_emb.run.evaluation import (
    Finding,
    check_networks,
    check_own_split,
    is_split,
    judge_by_mlp,
    judge_split,
    refuse_set,
    with_features,
)
from graph_emb.run.families.walk_tables import bucket_plan, fit_skipgram, saved_width, training_metrics, with_room
from graph_emb.run.family import Family, Trained, TrainingJob
from graph_emb.run.inputs import read_dataset
from graph_emb.run.levels import levels_of_table, with_levels
from graph_emb.sampling.metapath_walks import WEIGHT, Metapath, MetapathGraph, MetapathSampler, node_kinds, step_arcs


class MetapathFamily(Family):
    """See ``graph_emb.run.family.Family``."""

    _plan = ""
    """What tables in files will take, in a line."""

    def load(self) -> Dataset:
        """The graph with what its embeddings are judged by."""
        dataset = read_dataset(self.config.dataset)
        section, types = self.config.evaluate, self._path(dataset).node_types()  # refuses an absent path
        labelled = next((ntype for ntype in types if ntype in dataset.labels and ntype in dataset.node_split), None)
        split = None if labelled is None else dataset.node_split[labelled]
        check_networks(section, dataset.name, labelled, split, dataset.features)
        for ntype in dataset.labels:
            check_own_split(self.config, dataset.labels[ntype], dataset.node_split.get(ntype))
            if ntype not in types and (self.config.dataset.labels or self.config.dataset.split):
                raise ConfigError(f"labels of {ntype} have no effect: the metapath passes {', '.join(types)}")
        shared = [ntype for ntype in types if ntype in dataset.labels and ntype not in dataset.groups]
        if all(is_split(dataset.labels[ntype], dataset.node_split.get(ntype)) for ntype in shared):
            what = f"{dataset.name}, of whose labelled nodes no shares are drawn"
            refuse_set(section, ("ratios", "shuffles"), what)
        self.take(with_levels(self.config, None))
        count, model = dataset.graph.total_nodes, self.model
        kept = model.share_kept(model.dim, count)
        sized, self._plan = with_room(self.config, [model], count, tables=model.tables, kept=kept)
        self.take(sized)
        return dataset

    def describe(self, dataset: Dataset) -> dict[str, Any]:
        """Name, size and the path that is walked."""
        graph = dataset.graph
        return {
            "name": dataset.name,
            "nodes": graph.total_nodes,
            "edges": graph.total_edges,
            "node_types": dict(graph.num_nodes),
            "metapath": str(self._path(dataset)),
        }

    def num_saved(self, dataset: Dataset) -> int:
        """A row for each node of a type on the path."""
        types = self._path(dataset).node_types()
        return sum(dataset.graph.num_nodes[ntype] for ntype in types) * saved_width(self.config)

    def walk_loads(self, dataset: Dataset) -> list[WalkLoad]:
        """Walks from the nodes of the path's first type."""
        graph, model = dataset.graph, self.model
        walks = model.epochs * model.num_walks * graph.num_nodes[self._path(dataset).node_types()[0]]
        return [WalkLoad(model, graph.total_nodes, graph.total_edges, walks, model.walk_length)]

    def train(self, dataset: Dataset | None, job: TrainingJob) -> Trained:
        """Walk and train, in this process or with other ranks."""
        config, model, ranks = self.config, self.model, job.ranks
        walks = {"num_walks": model.num_walks, "walk_length": model.walk_length, "seed": config.seed}
        if ranks is None:
            assert dataset is not None
            share, states, group = None, whole_graph(dataset.graph, self._path(dataset)), None
        else:
            share = self._share(ranks, dataset)
            states, group = share.graph, ranks.group
        policy = None if share is None else share.policy
        if dataset is not None:
            placement = config.train.table_placement(model.buckets, model.tables, tables_share(model))
            walks_of = model.walk_length, model.num_walks * len(states.starts)
            plan = bucket_plan(model, placement, dataset.graph.total_nodes, *walks_of)
            if job.progress and (told := [line for line in (self._plan, plan) if line]):
                print(*told, sep="\n", file=sys.stderr)
        levels = levels_of_table(config, None if dataset is None else dataset.graph, None, ranks)
        sampler = MetapathSampler(states, group, **walks)
        tables, result = fit_skipgram(config, sampler, job, policy, levels=levels)
        rows = parallel.gathered_rows(ranks, tables, config.output.context, share)
        if dataset is None or rows is None:
            return Trained({}, result.interrupted)
        tables_by_type, graph = {}, dataset.graph
        for ntype in self._path(dataset).node_types():  # the path's first type first
            low, count = graph.node_offsets[ntype], graph.num_nodes[ntype]
            ids = graph.node_ids.get(ntype, np.arange(count))
            tables_by_type[ntype] = Embeddings(rows[low : low + count].numpy(), ids)
        return Trained(tables_by_type, result.interrupted, training_metrics(result))

    def judge(self, trained: Trained, dataset: Dataset, *, progress: bool) -> list[Finding]:
        """Classes or clusters of labelled types, and the neighbours of nodes that have names."""
        from graph_emb.evaluate.node_classification import cluster_agreement, nearest_nodes, node_classification

        section, seed, found = self.config.evaluate, self.config.seed, []
        for ntype, table in trained.tables.items():
            labels, asked = dataset.labels.get(ntype), dataset.asked.get(ntype)
            if labels is not None and ntype in dataset.groups:
                agreement = cluster_agreement(table.weights, labels, seed=seed)
                found.append(Finding(f"clusters_{ntype}", f"clusters of {ntype}, k-means", agreement))
            elif labels is not None and section.mlp is not None and ntype in dataset.node_split:
                matrix = with_features(table.weights, dataset.features.get(ntype), section.node_features)
                network_seed = seed if section.seed is None else section.seed
                with torch_threads(self.config.train.threads):
                    judged = judge_by_mlp(matrix, labels, dataset.node_split[ntype], section, network_seed, progress)
                found.append(judged)
            elif labels is not None and is_split(labels, dataset.node_split.get(ntype)):
                split, threads = dataset.node_split[ntype], self.config.train.threads
                found.append(judge_split(table.weights, labels, split, f"_{ntype}", threads=threads, progress=progress))
            elif labels is not None:
                scores = node_classification(
                    table.weights, labels, section.ratios, section.shuffles, seed,
                    threads=self.config.train.threads, progress=progress,
                )  # fmt: skip
                title = f"classification of {ntype}, one-vs-rest logistic regression"
                found.append(Finding(f"node_classification_{ntype}", title, scores))
            if asked is not None:
                nearest = nearest_nodes(table.weights, dataset.names[ntype], asked)
                found.append(Finding(f"nearest_{ntype}", f"nearest of {ntype}, cosine", nearest))
        return found

    def ids(self, dataset: Dataset) -> dict[str, NDArray[Any]]:
        """Of each type on the path."""
        graph = dataset.graph
        types = self._path(dataset).node_types()
        return {ntype: graph.node_ids.get(ntype, np.arange(graph.num_nodes[ntype])) for ntype in types}

    def _path(self, dataset: Dataset) -> Metapath:
        """The configured metapath, or the data set's own.

        Raises:
            ConfigError: there is neither, or the graph has no such path.
        """
        text = self.model.metapath or dataset.metapath
        if text is None:
            types = ", ".join(dataset.graph.ntypes)
            raise ConfigError(f"model.metapath is missing; join node types by '-'; {dataset.name} has: {types}")
        return Metapath.parse(text, dataset.graph)

    def _share(self, ranks: parallel.Trainers, dataset: Dataset | None) -> parallel.Share:
        """Cut the arcs of the path and take this rank's share. Every rank calls it; the first one gives the graph.

        All nodes are cut as one type, so that one table has all rows; each distinct step is an edge type of its own.
        """
        whole, facts, typed = None, None, None
        if dataset is not None:
            typed = dataset.graph
            path = self._path(dataset)
            distinct = list(dict.fromkeys(path.steps))
            arcs_of = {_arc_type(number): step_arcs(dataset.graph, step) for number, step in enumerate(distinct)}
            edges = {etype: (src, dst) for etype, (src, dst, _) in arcs_of.items()}
            data = {etype: {WEIGHT: weights} for etype, (_, _, weights) in arcs_of.items() if weights is not None}
            whole = HeteroGraph({NODE_TYPE: dataset.graph.total_nodes}, edges, edge_data=data, name="graph")
            types = [dataset.graph.ntypes.index(ntype) for ntype in path.types]
            facts = (types, [distinct.index(step) for step in path.steps], list(dataset.graph.num_nodes.values()))
        with parallel.parts_for(ranks, self.config, whole, facts, typed) as (parts, (types, steps, counts)):
            order = np.array(parts.node_map())
            kinds = np.repeat(np.arange(len(counts), dtype=np.int8), counts)[order]
            places = ranks.layout(parts.books[NODE_TYPE])
            arcs = [parallel.own_arcs(parts, _arc_type(number), places, ranks.rank) for number in range(max(steps) + 1)]
            states = MetapathGraph.build(types, kinds, [arcs[step] for step in steps], places, ranks.rank, ranks.group)
            return parallel.Share(states, parts.policy(), order if ranks.rank == 0 else None)


def whole_graph(graph: HeteroGraph, path: Metapath) -> MetapathGraph:
    """The states of a path over a graph that is in this process whole."""
    kinds = [graph.ntypes.index(ntype) for ntype in path.types]
    steps = [step_arcs(graph, step) for step in path.steps]
    return MetapathGraph.build(kinds, node_kinds(graph), steps, RankRanges([0, graph.total_nodes], [0], 1))


def _arc_type(number: int) -> EdgeType:
    return NODE_TYPE, f"step{number}", NODE_TYPE

"""R-GCN and GraphSAGE: graph networks whose inputs are tables that learn, for node classes and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from graph_emb.checkpoint.export import save_ids
from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import torch_threads
from graph_emb.formats.embedding_files import Embeddings, all_rows
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import NODE_TYPE, HeteroGraph
from graph_emb.graph.views import PlainDataset, classes_of, labelled_type, plain_dataset, typed_nodes
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, OwnNodeTask
from graph_emb.models.gnn.train import GNNResult, train_rgcn, train_sage
from graph_emb.run import own_parts, parallel
from graph_emb.run.evaluation import Finding, SeedsResult, each_seed
from graph_emb.run.family import Family, Trained, TrainingJob
from graph_emb.run.inputs import own_partition, read_own, with_files, with_held_out
from graph_emb.run.machine import check_memory
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from partition import PartitionedGraph
from partition.partitioned import PartPolicy

LINK_METRICS = {
    "ogbl-ddi": ("hits@20", "hits@10", "hits@30", "hits@50", "hits@100"),
    "ogbl-collab": ("hits@50", "hits@10", "hits@100"),
    "ogbl-ppa": ("hits@100", "hits@10", "hits@50"),
    "ogbl-citation2": ("mrr",),
    "ogbl-vessel": ("rocauc",),
}
"""OGB's metric first: it decides about early stopping."""


@dataclass(frozen=True, eq=False)
class GNNData:
    """Graph, task and features of a run, whole; or the kinds that they have where each trainer reads its own parts.

    Attributes:
        name: As the data set is called.
        graph: Messages follow its edges. With ``parts``: types and numbers of nodes, and no edges.
        task: Classes or links; None: trainers read labels and split with their nodes.
        features: By node type.
        counts: Edges that were merged, added and held out.
        parts: The partition that is the data set, of which each trainer reads its own parts.
    """

    name: str
    graph: HeteroGraph
    task: NodeTask | LinkTask | None
    features: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    parts: PartitionedGraph | None = None

    def ids(self, ntype: str) -> np.ndarray | None:
        """Original ids of the nodes of a type, (N,); None: 0 .. N - 1."""
        if self.parts is None:
            return self.graph.node_ids.get(ntype)
        return self.parts.input_ids(self.parts.ntypes[self.graph.ntypes.index(ntype)])


@dataclass(frozen=True, eq=False)
class Held:
    """What a process holds of the data of a run.

    Attributes:
        graph: The whole graph, or the edges into a trainer's nodes.
        task: Labels and split, whole or of the trainer's nodes.
        features: By node type, of the graph's or of the trainer's nodes.
        policies: Who owns which node, by type; empty where the process is alone.
    """

    graph: HeteroGraph | OwnEdges
    task: NodeTask | LinkTask
    features: Mapping[str, Any]
    policies: Mapping[str, PartPolicy]


MESSAGE_KINDS = (NodeTask, LinkTask)
"""The classes of what the first rank tells the others."""


class GNNFamily(Family):
    """See ``graph_emb.run.family.Family``."""

    _own: OwnEdges | None = None
    _num_edges: int | None = None
    """The trainer's part, and edges of all, where trainers read their own parts."""
    _has_valid = False

    @cached_property
    def _parts(self) -> PartitionedGraph | None:
        """The partition of which each trainer reads its own parts; None: the first one reads the data set."""
        return own_partition(self.config)

    def load(self) -> GNNData:
        """Graph, task and features; on trainers that read their own parts the kinds that these have."""
        data = self._load_whole() if self._parts is None else self._kinds_of(self._parts)
        if not self.model.features:
            data = replace(data, features={})
        self._check(data)
        rows = sum(num for ntype, num in data.graph.num_nodes.items() if ntype not in data.features)
        averages, width = int(self.model.ema_decay > 0), self.num_saved(data) / max(1, rows)
        check_memory(rows, 1, self.model, averages=averages, width=width)
        return data

    @property
    def _merge_within(self) -> bool:
        return getattr(self.model, "within_types", None) is not None

    def _kinds_of(self, parts: PartitionedGraph) -> GNNData:
        """Labels of files are read here, whole: they are of the nodes, not of the parts."""
        section, task = self.config.dataset, None
        dataset, features = own_parts.data_of(parts, {ntype: (0, 0) for ntype in parts.ntypes})
        if section.labels is not None or section.split is not None:
            dataset = with_files(own_parts.all_nodes(parts), section)
        ntype = labelled_type(dataset)
        policies = own_parts.policies_of(parts)  # by the names that types have in the graph of the messages
        names = dict(zip(parts.ntypes, policies, strict=True))
        if section.labels is not None or section.split is not None:
            task = NodeTask(names[ntype], classes_of(dataset.labels[ntype]), dataset.node_split[ntype])
        nothing = np.empty(0, np.int64)
        types = own_parts.message_types(parts, self._merge_within, list(own_parts.named_reverses(parts).values()))
        counts = {names[own]: parts.num_nodes(own) for own in parts.ntypes}
        graph = HeteroGraph(counts, {etype: (nothing, nothing) for etype in types})
        return GNNData(dataset.name, graph, task, {names[t]: rows for t, rows in features.items()}, parts=parts)

    def _load_whole(self) -> GNNData:
        section = self.config.dataset
        dataset = read_own(section)
        if isinstance(self.model, SAGEConfig) and (dataset.link_split is not None or section.test_edges is not None):
            for name in ("labels", "split"):
                if value := getattr(section, name):
                    raise ConfigError(f"dataset.{name} = {value} has no effect on links, which sage predicts here")
            return _links(with_held_out(plain_dataset(dataset), section, self.config.seed), self.model.metrics)
        nodes = typed_nodes(with_files(dataset, section), merge_within=self._merge_within)
        return GNNData(nodes.name, nodes.graph, NodeTask(nodes.ntype, nodes.labels, nodes.split), nodes.features)

    def _check(self, data: GNNData) -> None:
        try:
            torch.empty(0, device=self.config.train.device)
        except (RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"train.device = {self.config.train.device!r}: {reason}") from error
        if isinstance(self.model, SAGEConfig) and len(data.graph.edges) > 1:
            raise ConfigError(f"{data.name} has {len(data.graph.edges)} edge types, and sage takes one; take rgcn")
        if isinstance(self.model, RGCNConfig):
            self.model.check_inputs(data.features)
        if isinstance(self.model, SAGEConfig) and not isinstance(data.task, LinkTask):
            for name in SAGEConfig.for_links:
                value = getattr(self.model, name)
                if value != SAGEConfig.model_fields[name].default:
                    raise ConfigError(f"model.{name} = {value!r} has no effect on classes of nodes; leave it out")
        if set(data.graph.num_nodes) <= set(data.features):
            raise ConfigError(
                f"all nodes of {data.name} have features, so nothing is learned; set model.features=false"
            )

    def describe(self, dataset: GNNData) -> dict[str, Any]:
        """Name and counts."""
        graph = dataset.graph
        return {
            "name": dataset.name,
            "nodes": graph.total_nodes,
            "edges": graph.total_edges if self._num_edges is None else self._num_edges,
            "node_types": len(graph.num_nodes),
            "edge_types": len(graph.edges if self._own is None else self._own.etypes),
            "features": sorted(dataset.features),
            **({"counts": dict(dataset.counts)} if dataset.counts else {}),
        }

    def num_saved(self, dataset: GNNData) -> int:
        """A row for each node without features."""
        graph, width = dataset.graph, self.model.learned_width
        return sum(n * width(t, graph.etypes) for t, n in graph.num_nodes.items() if t not in dataset.features)

    def train(self, dataset: GNNData | None, job: TrainingJob) -> Trained:
        """Train with each seed; the tables that are kept are the first seed's."""
        if job.checkpoints is not None and self.model.num_seeds > 1:
            raise ConfigError(
                f"model.num_seeds = {self.model.num_seeds}: checkpoints hold one training; start a run for each seed"
            )
        held = self._held(dataset, job.ranks)
        self._has_valid = held.task.has_valid
        with torch_threads(self.config.train.threads):
            first, runs, interrupted = self._train_all(held, dataset, job)
        if not first:
            return Trained({}, interrupted)
        metrics = {
            "seconds_per_epoch": float(np.mean([run["seconds_per_epoch"] for run in runs.values()])),
            "parameters": runs[self.config.seed]["num_parameters"],
        }
        finished = {seed: run for seed, run in runs.items() if not run.pop("interrupted")}
        found = SeedsResult(tuple(finished), tuple(finished.values()))
        if interrupted:  # nothing is judged then: what finished seeds found stands here
            metrics["finished_seeds"] = found.as_dict()
        return Trained(first, interrupted, metrics, found)

    def _held(self, dataset: GNNData | None, ranks: Trainers | None) -> Held:
        """What this process holds of the data: the whole, or a trainer's part. Every rank calls it."""
        if ranks is None:
            assert dataset is not None
            assert dataset.task is not None  # trainers alone read parts
            return Held(dataset.graph, dataset.task, dataset.features, {})
        if self._parts is not None:
            return self._read_own(self._parts, dataset, ranks)
        whole = None
        if dataset is not None:
            columns = {ntype: {own_parts.FEATURES: _floats(rows)} for ntype, rows in dataset.features.items()}
            whole = replace(dataset.graph, node_data=columns, edge_data={})
        with parallel.parts_for(ranks, self.config, whole) as (parts, _):
            own = own_parts.own_edges(parts, ranks)
            _, features = own_parts.data_of(parts, own.ranges)
            policies = {ntype: parts.policy(ntype) for ntype in parts.ntypes}
        task = ranks.group.gather_objects(None if dataset is None else dataset.task, "task", MESSAGE_KINDS)[0]
        return Held(own, task, features, policies)

    def _read_own(self, parts: PartitionedGraph, dataset: GNNData | None, ranks: Trainers) -> Held:
        """This trainer's part of the data, from its parts of the partition. Every rank calls it."""
        group = ranks.group
        own = self._own = own_parts.message_edges(parts, ranks, merge_within=self._merge_within)
        self._num_edges = sum(group.gather_objects(sum(found.num_edges for found in own.edges.values()), "edges"))
        policies = own_parts.policies_of(parts)
        names = dict(zip(parts.ntypes, policies, strict=True))
        data, rows = own_parts.data_of(parts, dict(zip(parts.ntypes, own.ranges.values(), strict=True)))
        task = group.gather_objects(None if dataset is None else dataset.task, "task", MESSAGE_KINDS)[0]
        if task is None:
            ntype = labelled_type(data)
            labels = data.labels[ntype]
            single = all(group.gather_objects(labels.is_single, "labels"))
            task = OwnNodeTask.gathered(names[ntype], classes_of(labels, single), data.node_split[ntype], own)
        features = {names[ntype]: own_rows for ntype, own_rows in rows.items()} if self.model.features else {}
        return Held(own, task, features, policies)

    def _train_all(
        self, held: Held, dataset: GNNData | None, job: TrainingJob
    ) -> tuple[dict[str, Embeddings], dict[int, dict[str, Any]], bool]:
        """The first seed's rows, on the first rank; what every seed found; and whether Ctrl-C ended the last one."""
        first: dict[str, Embeddings] = {}
        runs: dict[int, dict[str, Any]] = {}
        seeds = range(self.config.seed, self.config.seed + self.model.num_seeds)
        try:
            for seed, result in each_seed(seeds, lambda seed: self._train_one(held, dataset, seed, job)):
                if seed == self.config.seed:
                    first = _tables(dataset, result)
                runs[seed] = {**result.as_dict(), "interrupted": result.interrupted}
                if result.interrupted:
                    return first, runs, True
                del result  # frees its tables
        except KeyboardInterrupt:  # before a seed's first epoch, or among several ranks
            if job.ranks is not None or not first:
                raise
            return first, runs, True
        return first, runs, False

    def _train_one(self, held: Held, dataset: GNNData | None, seed: int, job: TrainingJob) -> GNNResult:
        ranks, checkpoints = job.ranks, job.checkpoints
        options: dict[str, Any] = {
            "features": held.features,
            "policies": held.policies,
            "group": None if ranks is None else ranks.group,
            "seed": seed,
            "device": self.config.train.device,
            "progress": job.progress,
            "on_evaluation": lambda found: job.log({"seed": seed, **found.as_dict()}),
            "checkpoints": checkpoints,
            "table_prefix": None if checkpoints is None else "",
        }
        if checkpoints is not None and dataset is not None:
            for ntype in dataset.graph.num_nodes:
                if (ids := dataset.ids(ntype)) is not None:
                    save_ids(checkpoints.folder, ntype, ids)
        if isinstance(held.task, NodeTask) and isinstance(self.model, RGCNConfig):
            return train_rgcn(held.graph, held.task, self.model, **options)
        return train_sage(held.graph, held.task, self.model, **options)

    def judge(self, trained: Trained, dataset: GNNData, *, progress: bool) -> list[Finding]:
        """Scores of the training's evaluations at the epoch that the validation part chose."""
        kind = "link prediction" if isinstance(dataset.task, LinkTask) else "node classes"
        chosen = "at the best validation value" if self._has_valid else "after the last epoch"
        return [Finding("graph_network", f"{kind}, {chosen}", trained.model)]


def _links(dataset: PlainDataset, metrics: tuple[str, ...] | None) -> GNNData:
    """A data set with held-out edges: messages along and against its training edges."""
    metrics = metrics or LINK_METRICS.get(dataset.name, LinkTask.metrics)
    features = {} if dataset.features is None else {NODE_TYPE: dataset.features.astype(np.float32)}
    assert dataset.link_split is not None
    task = LinkTask(dataset.link_split, metrics)
    return GNNData(dataset.name, read_graph(dataset.graph), task, features, dataset.counts)


def _tables(dataset: GNNData | None, result: GNNResult) -> dict[str, Embeddings]:
    """All rows of all tables on the rank that has the data; every rank calls it."""
    found = {}
    for ntype, table in result.tables.items():
        rows = all_rows(table, wanted=dataset is not None)
        if rows is not None and dataset is not None:
            rows = rows[torch.from_numpy(table.original_ids.find(np.arange(table.num_embeddings)))]
            ids = dataset.ids(ntype)
            ids = np.arange(table.num_embeddings) if ids is None else ids
            found["node" if ntype == NODE_TYPE else ntype] = Embeddings(rows.numpy(), ids)
    return found


def _floats(rows: Any) -> np.ndarray:
    return np.ascontiguousarray(rows, np.float32)

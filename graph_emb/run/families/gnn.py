"""R-GCN and GraphSAGE: graph networks whose inputs are tables that learn, for node classes, links and triples."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from graph_emb.checkpoint.export import save_ids
from graph_emb.core.errors import ConfigError, LackingError
from graph_emb.core.threads import torch_threads
from graph_emb.evaluate.triple_ranks import check_candidates
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.formats.gathered_rows import all_rows
from graph_emb.formats.network_files import KeptNetwork
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import NODE_TYPE, HeteroGraph
from graph_emb.graph.views import (
    PlainDataset,
    classes_of,
    is_plain,
    knowledge_graph,
    labelled_type,
    message_graph,
    plain_dataset,
    typed_nodes,
)
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.kept import RebuiltNetwork, kept_network
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, OwnNodeTask, Task, TripleTask
from graph_emb.models.gnn.train import GNNResult, train_rgcn, train_sage
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.run import own_parts, parallel
from graph_emb.run.evaluation import (
    Finding,
    SeedsResult,
    each_seed,
    judge_classes,
    judge_links,
    judge_split,
    last_network,
)
from graph_emb.run.families.gnn_data import LINK_METRICS, MESSAGE_KINDS, GNNData, Held
from graph_emb.run.families.kge import described, entity_ids, relation_ids, tables_of
from graph_emb.run.families.triple_findings import ENTITY, JUDGED, RELATION, SharedRanks, judge_triples
from graph_emb.run.family import Family, Trained, TrainingJob
from graph_emb.run.inputs import own_partition, read_own, with_files, with_held_out, with_held_out_triples
from graph_emb.run.levels import levels_by_type, with_levels
from graph_emb.run.machine import bytes_of_rows, check_device, check_memory, file_plan, memory_plan, owners_of
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from partition import PartitionedGraph


class GNNFamily(Family):
    """See ``graph_emb.run.family.Family``."""

    _own: OwnEdges | None = None
    _num_edges: int | None = None
    """The trainer's part, and edges of all, where trainers read their own parts."""
    _has_valid = False
    _plan = ""
    _network: KeptNetwork | None = None
    """The first seed's, on the first rank."""
    _ranked: SharedRanks | None = None
    """Of several trainers the ranks of the held-out triples by the first seed's rows, on the first one."""
    _cache: Mapping[str, Any] = {}
    """The first seed's, on the first rank: by table what memory held of rows in files."""

    @cached_property
    def _parts(self) -> PartitionedGraph | None:
        """The partition of which each trainer reads its own parts; None: the first one reads the data set."""
        found = own_partition(self.config)
        held_out = None if found is None else found.held_out()
        if held_out is not None and (held_out.links or held_out.triples):
            return None  # edges are predicted, not classes
        if found is None or not isinstance(self.model, RGCNConfig) or self.config.dataset.labels is not None:
            return found
        kinds, _ = own_parts.data_of(found, dict.fromkeys(found.ntypes, (0, 0)))
        return found if kinds.labels or not (len(found.ntypes) == 1 < len(found.etypes)) else None  # else of triples

    def load(self) -> GNNData:
        """Graph, task and features; on trainers that read their own parts the kinds that these have."""
        data = self._load_whole() if self._parts is None else self._kinds_of(self._parts)
        self.take(with_levels(self.config, self._parts))
        if not self.model.features:
            data = replace(data, features={})
        self._check(data)
        counts = [num for ntype, num in data.graph.num_nodes.items() if ntype not in data.features]
        rows = sum(counts)
        averages, width = int(self.model.ema_decay > 0), self._num_learned(data) / max(1, rows)
        kept = self.model.share_kept(self.model.dim, *counts)
        if self.config.train.memory is None:
            check_memory(rows, 1, self.model, averages=averages, width=width, kept=kept)
            self._plan = memory_plan(
                rows, self.model, self.config.train, tables=width / self.model.dim * kept, of="nodes"
            )
        else:
            self._plan = self._file_plan(data, rows, averages, width)
        return data

    def _file_plan(self, data: GNNData, rows: int, averages: int, width: float) -> str:
        """What tables in files will take, in a line."""
        memory = f"train.memory = {self.config.train.memory!r}"
        if self.model.composed:
            raise ConfigError(f"{memory}: model.inputs = {self.model.inputs!r} keeps few rows, in memory; leave it out")
        if self.model.fanouts is None:
            raise ConfigError(
                f"{memory}: without model.fanouts a step asks for all rows; set it, as model.fanouts=[10,10] for two "
                "layers, or leave train.memory out"
            )
        layer = data.graph.total_nodes * self.model.hidden_dim  # two of an evaluation, and its results
        whole = bytes_of_rows(rows, self.model, width / self.model.dim) + 4 * (averages * rows * width + 3 * layer)
        tables = whole / bytes_of_rows(rows, self.model)
        copies = (rows * width + 2 * layer) / (rows * self.model.dim)  # results of the best evaluation, and the last
        words = {
            "of": "nodes",
            "beside": ", averages and rows between layers" if averages else " and rows between layers",
        }
        placement, owners = self.config.train.table_placement(), owners_of(self.config.parallel)
        return file_plan(rows, self.model, placement, copies=copies, tables=tables, processes=owners, **words)

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
        features = {names[t]: rows for t, rows in features.items()}
        classes = dataset.labels[ntype].class_names
        return GNNData(dataset.name, graph, task, features, parts=parts, class_names=classes)

    def _load_whole(self) -> GNNData:
        section = self.config.dataset
        dataset = read_own(section)
        if not self._predicts_edges(dataset):
            nodes = typed_nodes(with_files(dataset, section), merge_within=self._merge_within)
            task = NodeTask(nodes.ntype, nodes.labels, nodes.split)
            return GNNData(nodes.name, nodes.graph, task, nodes.features, class_names=nodes.class_names)
        for name in ("labels", "split"):
            if value := getattr(section, name):
                what = f"links, which {self.model.name} predicts here"
                raise ConfigError(f"dataset.{name} = {value} has no effect on {what}")
        return self._triples(dataset) if isinstance(self.model, RGCNConfig) else self._links(dataset)

    def _predicts_edges(self, dataset: Dataset) -> bool:
        """Whether edges are predicted, not classes of nodes: held-out ones, or those of a graph of relations alone."""
        if self.config.dataset.test_edges is not None:
            return True
        if not isinstance(self.model, RGCNConfig):
            return dataset.link_split is not None
        classes = self.config.dataset.labels is not None or dataset.labels
        return not classes and (
            dataset.triples is not None
            or (dataset.graph.held_out is not None and len(dataset.graph.held_out.triples) > 0)
            or (len(dataset.graph.ntypes) == 1 and not is_plain(dataset))
        )

    def _links(self, dataset: Dataset) -> GNNData:
        """A data set with held-out edges: messages along and against its training edges."""
        plain = with_held_out(plain_dataset(dataset), self.config.dataset, self.config.seed)
        metrics = self.model.metrics or LINK_METRICS.get(plain.name, LinkTask.metrics)
        features = {} if plain.features is None else {NODE_TYPE: plain.features.astype(np.float32)}
        assert plain.link_split is not None
        task = LinkTask(plain.link_split, metrics)
        return GNNData(plain.name, read_graph(plain.graph), task, features, plain.counts)

    def _triples(self, dataset: Dataset) -> GNNData:
        """A knowledge graph: messages along and against its training triples."""
        graph, counts = with_held_out_triples(knowledge_graph(dataset), self.config.dataset)
        check_candidates(graph, JUDGED, self.model.candidates)
        typed = None if graph.entity_types is None else dataset.graph
        messages = message_graph(graph, merge_within=self.model.within_types is not None)
        return GNNData(graph.name, messages, TripleTask(graph), counts=counts, typed=typed)

    def _check(self, data: GNNData) -> None:
        check_device(self.config.train.device)
        if isinstance(self.model, SAGEConfig) and len(data.graph.edges) > 1:
            raise ConfigError(f"{data.name} has {len(data.graph.edges)} edge types, and sage takes one; take rgcn")
        if isinstance(self.model, RGCNConfig):
            self.model.check_inputs(data.features)
            if not isinstance(data.task, TripleTask):
                self.model.check_classes()
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
        if isinstance(dataset.task, TripleTask):
            return described(dataset.task.triples, dataset.counts)
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
        """A row for each node without features; of triples one for each entity and each relation."""
        if isinstance(dataset.task, TripleTask):
            triples = dataset.task.triples
            return (triples.num_entities + triples.num_relations) * self.model.hidden_dim
        return self._num_learned(dataset)

    def _num_learned(self, dataset: GNNData) -> int:
        """Numbers in all tables."""
        graph, width = dataset.graph, self.model.learned_width
        return sum(n * width(t, graph.etypes) for t, n in graph.num_nodes.items() if t not in dataset.features)

    def train(self, dataset: GNNData | None, job: TrainingJob) -> Trained:
        """Train with each seed; the tables that are kept are the first seed's."""
        if job.checkpoints is not None and self.model.num_seeds > 1:
            raise ConfigError(
                f"model.num_seeds = {self.model.num_seeds}: checkpoints hold one training; start a run for each seed"
            )
        if self._plan and job.progress:
            print(self._plan, file=sys.stderr)
        held = self._held(dataset, job.ranks)
        self._has_valid = held.task.has_valid
        with torch_threads(self.config.train.threads):
            first, runs, interrupted = self._train_all(held, dataset, job)
        if not first:
            return Trained({}, interrupted)
        metrics = {
            "seconds_per_epoch": float(np.mean([run["seconds_per_epoch"] for run in runs.values()])),
            "parameters": runs[self.config.seed]["num_parameters"],
            **({"cache": self._cache} if self._cache else {}),
        }
        finished = {seed: run for seed, run in runs.items() if not run.pop("interrupted")}
        found = SeedsResult(tuple(finished), tuple(finished.values()))
        if interrupted:  # nothing is judged then: what finished seeds found stands here
            metrics["finished_seeds"] = found.as_dict()
        return Trained(first, interrupted, metrics, found, self._network)

    def _held(self, dataset: GNNData | None, ranks: Trainers | None) -> Held:
        """What this process holds of the data: the whole, or a trainer's part. Every rank calls it."""
        if ranks is None:
            assert dataset is not None
            assert dataset.task is not None  # trainers alone read parts
            return Held(dataset.graph, dataset.task, dataset.features, {})
        if self._parts is not None:
            return self._read_own(self._parts, dataset, ranks)
        whole = typed = None
        if dataset is not None:
            typed = dataset.typed
            columns = {ntype: {own_parts.FEATURES: _floats(rows)} for ntype, rows in dataset.features.items()}
            whole = replace(dataset.graph, node_data=columns, edge_data={})
        with parallel.parts_for(ranks, self.config, whole, typed=typed) as (parts, _):
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
                    if self.config.train.memory is not None:
                        stats = {_table_name(ntype): table.cache_stats() for ntype, table in result.tables.items()}
                        self._cache = {name: own.as_dict() for name, own in stats.items()}
                    first = _tables(dataset, result)
                    self._keep(held, dataset, result)
                    self._rank(held.task, result, job)
                runs[seed] = {**result.as_dict(), "interrupted": result.interrupted}
                if result.interrupted:
                    return first, runs, True
                del result  # frees its tables
        except KeyboardInterrupt:  # before a seed's first epoch, or among several ranks
            if job.ranks is not None or not first:
                raise
            return first, runs, True
        return first, runs, False

    def _keep(self, held: Held, dataset: GNNData | None, result: GNNResult) -> None:
        """Keep the network; of triples it made the rows that are kept, which say all."""
        if dataset is not None and not isinstance(held.task, TripleTask):
            graph, known = held.graph, held.features
            widths = {
                t: known[t].shape[1] if t in known else self.model.learned_width(t, graph.etypes)
                for t in graph.num_nodes
            }
            self._network = kept_network(result, graph, held.task, widths, dataset.class_names)

    def _rank(self, task: Task, result: GNNResult, job: TrainingJob) -> None:
        """Rank the held-out triples by all trainers, before the others leave. Every rank calls it."""
        judges = self.config.evaluate.enabled and not result.interrupted
        if job.ranks is None or not isinstance(task, TripleTask) or not judges:
            return
        scorer, sampled = scorer_of(self.model.decoder_settings), {"num_candidates": self.model.candidates}
        self._ranked = SharedRanks.of(
            job.ranks.group, scorer, result.ranked, task.triples, None, **sampled, seed=self.config.seed
        )

    def _train_one(self, held: Held, dataset: GNNData | None, seed: int, job: TrainingJob) -> GNNResult:
        ranks, checkpoints = job.ranks, job.checkpoints
        options: dict[str, Any] = {
            "features": held.features,
            "policies": held.policies,
            "levels": self._levels(held, dataset, ranks),
            "group": None if ranks is None else ranks.group,
            "seed": seed,
            "device": self.config.train.device,
            "progress": job.progress,
            "on_evaluation": lambda found: job.log({"seed": seed, **found.as_dict()}),
            "checkpoints": checkpoints,
            "table_prefix": None if checkpoints is None else "",
            "placement": self.config.train.table_placement(),
        }
        if checkpoints is not None and dataset is not None:
            for ntype in dataset.graph.num_nodes:
                if (ids := dataset.ids(ntype)) is not None:
                    save_ids(checkpoints.folder, ntype, ids)
        if isinstance(self.model, RGCNConfig):
            assert not isinstance(held.task, LinkTask)
            return train_rgcn(held.graph, held.task, self.model, **options)
        assert not isinstance(held.task, TripleTask)
        return train_sage(held.graph, held.task, self.model, **options)

    def _levels(self, held: Held, dataset: GNNData | None, ranks: Trainers | None) -> dict[str, np.ndarray] | None:
        """By node type without features the parts of its nodes, for inputs of position. Every rank calls it."""
        graph, typed = (None, None) if dataset is None else (dataset.graph, dataset.typed)
        names = None if self._parts is None else [*held.policies]
        found = levels_by_type(self.config, graph, self._parts, ranks, names=names, typed=typed)
        return None if found is None else {name: found[name] for name in found if name not in held.features}

    def judge(self, trained: Trained, dataset: GNNData, *, progress: bool) -> list[Finding]:
        """Scores of the training's evaluations at the epoch that the validation part chose."""
        task, findings = dataset.task, []
        if self._ranked is not None:
            findings = self._ranked.findings()
        elif isinstance(task, TripleTask):
            recipe = self.model
            findings = judge_triples(trained.tables, task.triples, recipe.decoder_settings, recipe, self.config.seed)
        kind = {LinkTask: "link prediction", TripleTask: "triples"}.get(type(task), "node classes")
        chosen = "at the best validation value" if self._has_valid else "after the last epoch"
        return [Finding("graph_network", f"{kind}, {chosen}", trained.model), *findings]

    def ids(self, dataset: GNNData) -> dict[str, np.ndarray]:
        """Of entities and relations, or of each type that has rows."""
        if isinstance(dataset.task, TripleTask):
            return {ENTITY: entity_ids(dataset.task.triples), RELATION: relation_ids(dataset.task.triples)}
        found = {}
        for ntype, count in dataset.graph.num_nodes.items():
            if ntype not in dataset.features:
                ids = dataset.ids(ntype)
                found[_table_name(ntype)] = np.arange(count) if ids is None else ids
        return found

    def rebuilt(self, tables: Mapping[str, Embeddings], dataset: GNNData, network: KeptNetwork) -> RebuiltNetwork:
        """The trained network on the run's graph.

        Args:
            tables: Rows in the order of ``ids``.
        """
        graph = dataset.graph
        rows = {
            t: dataset.features.get(t, tables[name].weights if (name := _table_name(t)) in tables else None)
            for t in graph.num_nodes
        }
        with torch_threads(self.config.train.threads):
            return RebuiltNetwork(network, self.model, graph, rows)

    def judge_rows(
        self, tables: dict[str, Embeddings], dataset: GNNData, network: KeptNetwork | None = None, *, progress: bool
    ) -> list[Finding]:
        """Triples by their decoder; classes and links by the network, and by the rows alone as those of a walk model.

        Raises:
            LackingError: no network is kept, and the nodes that have classes have features in the place of rows.
        """
        task = dataset.task
        if isinstance(task, TripleTask):
            return judge_triples(tables, task.triples, self.model.decoder_settings, self.model, self.config.seed)
        assert isinstance(task, NodeTask | LinkTask)  # a process alone reads the data whole
        name, findings = _table_name(task.ntype if isinstance(task, NodeTask) else NODE_TYPE), []
        if network is not None:
            parts = self.rebuilt(tables, dataset, network).measure(task)
            kind = "links" if isinstance(task, LinkTask) else "node classes"
            findings.append(last_network(kind, network.about["epoch"], parts, network.num_parameters))
            if name not in tables:
                return findings
        return [*findings, self._judge_alone(tables, dataset, task, name, progress=progress)]

    def _judge_alone(
        self, tables: dict[str, Embeddings], dataset: GNNData, task: NodeTask | LinkTask, name: str, *, progress: bool
    ) -> Finding:
        """Rows without their network."""
        section, seed = self.config.evaluate, self.config.seed
        if name not in tables:
            raise LackingError(
                f"nodes of type {name!r} have features and so no rows to be judged; what their network scored is in "
                "metrics.json, which graph-emb info prints"
            )
        weights, threads = tables[name].weights, self.config.train.threads
        nothing = np.empty((0, 2), np.int64)
        plain = Graph.from_edges(nothing[:, 0], nothing[:, 1], len(weights))
        if isinstance(task, LinkTask):
            split = {part: dict(arrays) for part, arrays in task.split.items()}
            return judge_links(weights, PlainDataset(dataset.name, plain, link_split=split), section)
        classes = np.asarray(task.labels)
        if task.is_single:
            labels = Labels.from_single(classes)
            return judge_split(weights, labels, dict(task.split), threads=threads, progress=progress)
        labels = Labels.from_lists([np.flatnonzero(row == 1).tolist() for row in classes])
        data = PlainDataset(dataset.name, plain, labels)
        return judge_classes(weights, data, section, seed, threads=threads, progress=progress)


def _tables(dataset: GNNData | None, result: GNNResult) -> dict[str, Embeddings]:
    """All rows of all tables on the rank that has the data; every rank calls it. Of triples those that rank them."""
    if isinstance(result.model, nn.ModuleDict) and "decoder" in result.model:
        if dataset is None or result.ranked is None:
            return {}
        assert isinstance(dataset.task, TripleTask)
        return tables_of(dataset.task.triples, *result.ranked)
    found = {}
    for ntype, table in result.tables.items():
        rows = all_rows(table, wanted=dataset is not None)
        if rows is not None and dataset is not None:
            rows = rows[torch.from_numpy(table.original_ids.find(np.arange(table.num_embeddings)))]
            ids = dataset.ids(ntype)
            ids = np.arange(table.num_embeddings) if ids is None else ids
            found[_table_name(ntype)] = Embeddings(rows.numpy(), ids)
    return found


def _table_name(ntype: str) -> str:
    return "node" if ntype == NODE_TYPE else ntype


def _floats(rows: Any) -> np.ndarray:
    return np.ascontiguousarray(rows, np.float32)

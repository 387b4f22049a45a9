"""Models of graphs with one node type: what they share, and skip-gram on walks and LINE on edges."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.checkpoint.export import save_ids
from graph_emb.core.errors import ConfigError
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.formats.gathered_rows import joined_rows
from graph_emb.formats.warm_start import FromFile
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.views import PlainDataset, plain_dataset
from graph_emb.models.shared_rows import SharedRows
from graph_emb.models.skipgram.bucket_steps import tables_share
from graph_emb.models.skipgram.config import EdgePolicy, LineConfig, SkipGramConfig
from graph_emb.models.skipgram.line import row_lengths, side_by_side, train_line
from graph_emb.models.skipgram.training import Sampler
from graph_emb.run import multilevel, own_parts, parallel
from graph_emb.run.continuing import CONTEXT, LENGTHS, GrownStart, OldRun, start_of
from graph_emb.run.cost import WalkLoad
from graph_emb.run.evaluation import Finding, check_own_split, check_section, evaluate
from graph_emb.run.families.walk_tables import (
    bucket_plan,
    cache_metrics,
    computed_rows,
    first_rows,
    fit_skipgram,
    saved_width,
    training_metrics,
    with_room,
)
from graph_emb.run.family import Family, Trained, TrainingJob
from graph_emb.run.inputs import edge_policy, no_edges, own_partition, read_plain_dataset, with_files
from graph_emb.run.levels import levels_of_table, with_levels
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import EdgeSampler, WalkSampler
from graph_emb.table.initializers import Initializer
from graph_emb.table.placement import File
from partition import PartitionedGraph


class PlainFamily(Family):
    """One table of rows, judged by node classes and held-out edges."""

    _own: own_parts.OwnArcs | None = None
    """The trainer's rows of the graph, where each of them reads its own parts of a partition."""
    _plan: str = ""
    """What tables in files will take, in a line."""
    _limits: Mapping[str, Any] | None = None
    """What the trainers' parts share evenly, see ``parallel.assigned``."""

    def load(self) -> PlainDataset:
        """The graph with what its embeddings are judged by; without edges where trainers read their own parts."""
        config = self.config
        if self._parts is None:
            config.dataset.grow_from(None if self._old is None else self._old.config.dataset)
            dataset = read_plain_dataset(config.dataset, config.seed, **edge_policy(self.model))
            config.dataset.grow_from(None)
        else:
            dataset = plain_dataset(with_files(own_parts.all_nodes(self._parts), config.dataset))
            if not self._parts.num_edges():
                raise no_edges(config.dataset.name, dataset.graph.num_nodes)
        self._check(dataset)
        self.take(with_levels(self.config, self._parts))
        count, model = dataset.graph.num_nodes, self.model
        kept = model.share_kept(self.model.dim, count) if isinstance(model, SharedRows) else 1.0
        sized, self._plan = with_room(self.config, self._recipes(dataset), count, tables=self._num_tables(), kept=kept)
        self.take(sized)
        return dataset

    def _recipes(self, dataset: PlainDataset) -> list[SkipGramConfig]:
        """Of skip-gram, for each of the model's trainings by it."""
        return []

    @cached_property
    def _parts(self) -> PartitionedGraph | None:
        """The partition of which each trainer reads its own parts; None: the first one reads the data set.

        The first one reads what decides about directions, and the features and training edges that rows are judged
        with.
        """
        model, section = self.model, self.config.evaluate
        with_rows = section.enabled and section.mlp is not None and section.node_features != "none"
        with_edges = section.enabled and (section.predictor is not None or section.scorer == "hadamard-logreg")
        compared = getattr(model, "from_run", None) is not None  # with the graph of the run that goes on
        walks = isinstance(model, EdgePolicy) and model.symmetrize and not (with_rows or with_edges or compared)
        return own_partition(self.config) if walks else None

    def _share(self, ranks: parallel.Trainers, graph: Graph | None) -> parallel.Share:
        """This rank's share of the graph, with the levels of a multilevel start. Every rank calls it."""
        leveled = getattr(self.model, "multilevel", False) is not False
        if self._parts is None:
            sizes = multilevel.sizes_of(self.config, graph.num_nodes) if leveled and graph is not None else None
            return parallel.share_of(ranks, self.config, graph, sizes, leveled, self._limits)
        self._own = own_parts.own_arcs(self._parts, ranks, self.model.duplicates)
        if not leveled:
            return self._own.share
        columns = [self._parts.level_sizes.index(size) for size in multilevel.sizes_of(self.config, 0)]
        return replace(self._own.share, levels=self._parts.levels()[:, columns])

    def _levels(self, graph: Graph | None, ranks: parallel.Trainers | None) -> NDArray[Any] | None:
        """The part of each node at each level of a composed table; None: it needs none. Every rank calls it."""
        whole = None if graph is None or self._parts is not None or not self.model.takes_levels else graph
        return levels_of_table(self.config, None if whole is None else parallel.of_one_type(whole), self._parts, ranks)

    def _leveled(self, graph: Graph | None, share: parallel.Share | None) -> parallel.Share:
        """The share with the levels of a multilevel start: a trainer's own, or the whole graph in one process."""
        if share is not None:
            return share
        assert graph is not None
        sizes = multilevel.sizes_of(self.config, graph.num_nodes)
        levels = parallel.levels_of_nodes(self.config, parallel.of_one_type(graph), sizes)
        whole = PartGraph.of_graph(graph, RankRanges([0, graph.num_nodes], [0], 1), 0)
        return parallel.Share(whole, None, None, levels)

    def _check(self, dataset: PlainDataset) -> None:
        check_section(self.config.evaluate, dataset)
        check_own_split(self.config, dataset.labels, dataset.node_split)
        if getattr(self.model, "multilevel", False) is not False:
            multilevel.check(self.config, self._parts, dataset.graph.num_nodes)

    def _num_tables(self) -> float:
        """Tables, in units of one of the model's width."""
        return float(self.model.tables)

    def _num_arcs(self, dataset: PlainDataset) -> int:
        """Arcs of the graph, also where trainers read their own parts of it."""
        graph = dataset.graph
        return graph.num_arcs if self._parts is None else self._parts.num_edges() * (1 if graph.directed else 2)

    @cached_property
    def _old(self) -> OldRun | None:
        """The run that goes on."""
        place, section = getattr(self.model, "from_run", None), self.config.dataset
        if place is not None and section.hold_out:
            raise ConfigError(
                f"dataset.hold_out = {section.hold_out}: other edges of the grown graph would be held out than the old "
                "rows were trained without; set it to 0, or give dataset.test_edges"
            )
        return None if place is None else OldRun.read(place)

    def _start(self, graph: Graph) -> GrownStart:
        """What goes on of the run that ``from_run`` names."""
        old = self._old
        assert old is not None
        del self._old  # its graph goes when this ends
        return start_of(old, graph, self.model, self.config.seed)

    def describe(self, dataset: PlainDataset) -> dict[str, Any]:
        """Name and size of the graph, and the edges that its view merged and added."""
        graph, own = dataset.graph, self._own
        edges, counts = (graph.num_edges, dataset.counts) if own is None else (own.num_edges, own.counts)
        sizes = {"name": dataset.name, "nodes": graph.num_nodes, "edges": edges, "directed": graph.directed}
        return {**sizes, "counts": dict(counts)} if counts else sizes

    def num_saved(self, dataset: PlainDataset) -> int:
        """A row for each node."""
        return dataset.graph.num_nodes * saved_width(self.config)

    def judge(self, trained: Trained, dataset: PlainDataset, *, progress: bool) -> list[Finding]:
        """Node classes and held-out edges."""
        config, weights = self.config, trained.tables[parallel.TABLE].weights
        return evaluate(weights, dataset, config.evaluate, config.seed, threads=config.train.threads, progress=progress)

    def ids(self, dataset: PlainDataset) -> dict[str, NDArray[Any]]:
        """Of the one table."""
        return {parallel.TABLE: dataset.graph.ids_of(np.arange(dataset.graph.num_nodes))}

    def _save_ids(self, dataset: PlainDataset | None, job: TrainingJob) -> None:
        if job.checkpoints is not None and dataset is not None and dataset.graph.node_ids is not None:
            save_ids(job.checkpoints.folder, parallel.TABLE, dataset.graph.node_ids)


class WalkFamily(PlainFamily):
    """DeepWalk and node2vec; see ``graph_emb.run.family.Family``."""

    _limits = parallel.WALKS

    @property
    def _keeps_context(self) -> bool:
        """Whether the run folder has the context rows in a file of their own."""
        return self.model.keep_context and self.model.tables == 2 and self.config.output.context != "concat"

    def num_kept(self, dataset: PlainDataset) -> int:
        """The context rows, with which a training goes on."""
        return dataset.graph.num_nodes * self.model.dim if self._keeps_context else 0

    def _recipes(self, dataset: PlainDataset) -> list[SkipGramConfig]:
        return [self.model]

    def walk_loads(self, dataset: PlainDataset) -> list[WalkLoad]:
        """Walks from every node."""
        model, num_nodes = self.model, dataset.graph.num_nodes
        walks = model.epochs * model.num_walks * num_nodes
        return [WalkLoad(model, num_nodes, self._num_arcs(dataset), walks, model.walk_length)]

    def train(self, dataset: PlainDataset | None, job: TrainingJob) -> Trained:
        """Walk and train, in this process or with other ranks."""
        config, model, ranks = self.config, self.model, job.ranks
        graph = None if dataset is None else dataset.graph
        self._save_ids(dataset, job)
        if graph is not None:
            placement = config.train.table_placement(model.buckets, model.tables, tables_share(model))
            num_nodes = graph.num_nodes
            plan = bucket_plan(model, placement, num_nodes, model.walk_length, model.num_walks * num_nodes)
            self._plan = "\n".join(filter(None, [self._plan, plan]))
        if self._plan and job.progress:
            print(self._plan, file=sys.stderr)
        p, q = model.bias
        walks: dict[str, Any] = {"num_walks": model.num_walks, "walk_length": model.walk_length, "p": p, "q": q}
        walks["seed"] = config.seed
        sampler: Sampler
        start = None if dataset is None or model.from_run is None else self._start(dataset.graph)
        if ranks is None:
            assert graph is not None
            if start is not None:
                walks["starts"] = start.starts
            share, node_ids, sampler = None, graph.node_ids, WalkSampler(graph, **walks)
        elif model.spectral_start:
            raise ConfigError(
                f"model.warm_start = {model.warm_start!r} needs the whole graph in one process; train it first, and "
                "give its run folder to several trainers"
            )
        else:
            share = self._share(ranks, graph)
            if model.from_run is not None:
                start, walks["starts"] = _handed_out(start, share, ranks)
            sampler = PartitionedWalkSampler(share.graph, ranks.group, **walks)
            told = None if graph is None or model.warm_start is None else graph.node_ids
            node_ids = ranks.group.gather_objects(told, "the ids of the nodes")[0]
        first: FromFile | Initializer | None = None
        if not model.spectral_start:
            first = first_rows(model, config.seed, node_ids)
        begin, computed = time.perf_counter(), None
        policy = None if share is None else share.policy
        spent: dict[str, Any] = {}
        if model.spectral_start:
            assert graph is not None
            computed = torch.from_numpy(computed_rows(model, graph, config.seed))
            spent = {"warm_start_seconds": time.perf_counter() - begin}
        context: Initializer | None = None
        if model.multilevel is not False and not job.goes_on():
            coarse = self._coarse_start(graph, share, job, walks)
            ((first, context),) = coarse.models
            spent = {"multilevel": coarse.levels, "multilevel_seconds": time.perf_counter() - begin}
        if start is not None:
            (first, context), spent = start.first, {"continued": start.report}
        levels = self._levels(graph, ranks)
        tables, result = fit_skipgram(config, sampler, job, policy, first, context, computed, levels)
        self.model = model.model_copy(update={"lr": result.first_lr})
        self.config = config.model_copy(update={"model": self.model})
        files = {}
        if self._keeps_context:
            rows, other = (parallel.gathered_rows(ranks, tables, side, share) for side in ("none", "only"))
            if rows is not None and other is not None:
                files[CONTEXT] = other.numpy()
                rows = tables.with_context("add", rows, other) if config.output.context == "add" else rows
        else:
            rows = parallel.gathered_rows(ranks, tables, config.output.context, share)
        if dataset is None or rows is None:
            return Trained({}, result.interrupted)
        ids = dataset.graph.ids_of(np.arange(dataset.graph.num_nodes))
        metrics = {**training_metrics(result), **spent}
        found = {parallel.TABLE: Embeddings(rows.numpy(), ids)}
        return Trained(found, result.interrupted, metrics, files=files)

    def _coarse_start(
        self, graph: Graph | None, share: parallel.Share | None, job: TrainingJob, walks: Mapping[str, Any]
    ) -> multilevel.CoarseStart:
        """First rows from the graph of a partition's parts. Every rank calls it."""
        ranks = job.ranks

        def sampler_of(coarse: PartGraph, num_walks: int) -> Sampler:
            options: dict[str, Any] = {**walks, "num_walks": num_walks}
            if ranks is not None:
                return PartitionedWalkSampler(coarse, ranks.group, **options)
            return WalkSampler(Graph(coarse.indptr, coarse.indices, coarse.weights, coarse.directed), **options)

        share = self._leveled(graph, share)
        assert share.levels is not None
        whole, policy = share.graph, share.policy
        return multilevel.start_of(self.config, whole, share.levels, policy, ranks, sampler_of, progress=job.progress)


def _handed_out(
    start: GrownStart | None, share: parallel.Share, ranks: parallel.Trainers
) -> tuple[GrownStart, NDArray[Any]]:
    """The first rank's start, and where walks begin in partition order, at every rank. Every rank calls it."""
    starts = None
    if start is not None and share.order is not None:
        begins = np.zeros(len(start.token), bool)
        begins[start.starts] = True
        starts = np.flatnonzero(begins[share.order])
    told = None if start is None else (start.token, start.context, start.is_new, start.starts, start.report, starts)
    *fields, starts = ranks.group.gather_objects(told, "the rows of the run")[0]
    return GrownStart(*fields), starts


class LineFamily(PlainFamily):
    """LINE; see ``graph_emb.run.family.Family``."""

    def _check(self, dataset: PlainDataset) -> None:
        super()._check(dataset)
        self._recipes(dataset)  # refuses what has no meaning on the graph

    def _num_tables(self) -> float:
        return self.model.num_tables / len(self.model.orders)  # both orders have half of the width each

    def _recipes(self, dataset: PlainDataset) -> list[SkipGramConfig]:
        return [self.model.skipgram(order, directed=dataset.graph.directed) for order in self.model.orders]

    def walk_loads(self, dataset: PlainDataset) -> list[WalkLoad]:
        """Drawn edges of each order, which are walks of two nodes."""
        num_nodes, num_arcs = dataset.graph.num_nodes, self._num_arcs(dataset)
        edges = num_arcs if dataset.graph.directed else num_arcs // 2
        draws = self.model.epochs * self.model.draws_per_edge * edges
        return [WalkLoad(one, num_nodes, num_arcs, draws, 2) for one in self._recipes(dataset)]

    def _bucket_plans(self, dataset: PlainDataset, sampler: EdgeSampler, placement: Any) -> list[str]:
        """As ``bucket_plan``, of each order."""
        sizes = sampler.num_nodes, 2, sampler.num_walks_per_epoch
        return [bucket_plan(one, placement, *sizes) for one in self._recipes(dataset)]

    def num_kept(self, dataset: PlainDataset) -> int:
        """The context rows and the lengths of rows, with which a training goes on."""
        model = self.model
        width = model.dim // len(model.orders) if "second" in model.orders else 0
        return dataset.graph.num_nodes * (width + model.normalize * len(model.orders)) if model.keep_context else 0

    def train(self, dataset: PlainDataset | None, job: TrainingJob) -> Trained:
        """Draw and train, in this process or with other ranks."""
        config, model, ranks = self.config, self.model, job.ranks
        graph = None if dataset is None else dataset.graph
        self._save_ids(dataset, job)
        draws: dict[str, Any] = {"draws_per_edge": model.draws_per_edge, "seed": config.seed}
        share = None if ranks is None else self._share(ranks, graph)
        start = None if graph is None or model.from_run is None else self._start(graph)
        if start is not None:
            draws["ends"] = start.starts
        if ranks is not None and share is not None and model.from_run is not None:
            start, draws["ends"] = _handed_out(start, share, ranks)
        if ranks is None or share is None:
            assert graph is not None
            sampler = EdgeSampler.of_graph(graph, **draws)
        else:
            sampler = EdgeSampler(share.graph, ranks.group, **draws)
        placement = config.train.table_placement(model.buckets, model.num_tables, tables_share(model))
        if dataset is not None and job.progress:
            for plan in filter(None, [self._plan, *self._bucket_plans(dataset, sampler, placement)]):
                print(plan, file=sys.stderr)
        first: dict[str, Any] | None = None
        spent: dict[str, Any] = {}
        begin = time.perf_counter()
        if model.multilevel is not False and not job.goes_on():
            own = self._leveled(graph, share)
            assert own.levels is not None
            of_graph = (own.graph, own.levels, own.policy, ranks, sampler.num_edges)
            coarse = multilevel.line_start(config, *of_graph, progress=job.progress)
            first = dict(zip(model.orders, coarse.models, strict=True))
            spent = {"multilevel": coarse.levels, "multilevel_seconds": time.perf_counter() - begin}
        if start is not None:
            first, spent = _by_order(model, start), {"continued": start.report}
        result = train_line(
            sampler,
            model,
            part_policy=None if share is None else share.policy,
            seed=config.seed,
            num_threads=config.train.threads,
            progress=job.progress,
            log_interval=config.train.log_interval,
            on_batch=lambda order, entry: job.log({"order": order, **entry.as_dict()}),
            checkpoints=job.checkpoints,
            name=None if job.checkpoints is None else parallel.TABLE,
            placement=placement,
            levels=self._levels(graph, ranks),
            first=first,
        )
        kept = model.keep_context and len(result.models) == len(model.orders)
        orders = [
            parallel.gathered_rows(ranks, made, "concat" if kept and order == "second" else "none", share)
            for order, made in result.models.items()
        ]
        if dataset is None:
            return Trained({}, result.interrupted)
        width = model.dim // len(model.orders)
        found = [order[:, :width] for order in orders if order is not None]
        folder = placement.path if isinstance(placement, File) else None
        rows, files = joined_rows(partial(side_by_side, normalize=model.normalize), found, folder), {}
        if kept and model.normalize:
            files[LENGTHS] = joined_rows(row_lengths, found, folder).numpy()
        if kept and "second" in model.orders and orders[-1] is not None:
            files[CONTEXT] = joined_rows(torch.Tensor.contiguous, [orders[-1][:, width:]], folder).numpy()
        ids = dataset.graph.ids_of(np.arange(dataset.graph.num_nodes))
        metrics = {
            "orders": {
                order: {**lines[-1].as_dict(), **cache_metrics(result.models[order])}
                for order, lines in result.history.items()
                if lines
            },
            "seconds": result.seconds,
            "edges": result.num_draws,
            "edges_per_second": round(result.num_draws / result.seconds) if result.seconds else None,
            "parameters": result.num_parameters,
            **spent,
        }
        return Trained({parallel.TABLE: Embeddings(rows.numpy(), ids)}, result.interrupted, metrics, files=files)


def _by_order(model: LineConfig, start: GrownStart) -> dict[str, Any]:
    """Initializers of the tables of each order."""
    columns = np.split(start.token, len(model.orders), axis=1)
    return {
        order: replace(
            start, token=np.ascontiguousarray(token), context=start.context if order == "second" else None
        ).first
        for order, token in zip(model.orders, columns, strict=True)
    }

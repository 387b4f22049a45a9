"""Knowledge graphs: TransE, DistMult, ComplEx, RotatE and SimplE on triples."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.export import save_ids
from graph_emb.config.schema import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.core.terminal import note
from graph_emb.embedding import DistEmbedding
from graph_emb.evaluate.triple_ranks import check_candidates
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.partition_book import RangeBook
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import MOST_BUCKETS
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.models.kge.training import KGEResult, train_kge
from graph_emb.run import multilevel, own_parts
from graph_emb.run.evaluation import Finding
from graph_emb.run.families.kge_rounds import all_triples, beside_parts, check_rounds, plan_of_rounds, with_rounds
from graph_emb.run.families.triple_findings import ENTITY, JUDGED, RELATION, SharedRanks, judge_triples
from graph_emb.run.family import Family, Trained, TrainingJob
from graph_emb.run.inputs import (
    REMOVED,
    own_partition,
    read_dataset,
    test_triples,
    unchanged_partition,
    with_held_out_triples,
)
from graph_emb.run.levels import levels_of_start, levels_of_table, with_levels
from graph_emb.run.machine import (
    bytes_of_rows,
    check_device,
    check_memory,
    file_plan,
    memory_plan,
    owners_of,
    pages_of_rows,
)
from graph_emb.run.parallel import Trainers, policies_for, policy_of
from graph_emb.sampling.bucket_counts import OCCURRENCE
from graph_emb.sampling.buckets import num_swaps
from graph_emb.sampling.known_triples import KnownAnswers
from graph_emb.sampling.partitioned_triples import OwnTriples
from graph_emb.sampling.stored_triples import RECORD, TriplesOnDisk
from graph_emb.table.initializers import FromParts
from graph_emb.table.placement import File, in_memory
from graph_emb.table.tier.pages import least_pages
from partition import PartitionedGraph
from partition.partitioned import PartPolicy

HELD = (8, 3)
"""Parts that memory holds where their number is chosen, or as few where pages are too few for that."""


class KGEFamily(Family):
    """See ``graph_emb.run.family.Family``."""

    _counts: Mapping[str, int] = {}
    _own: OwnTriples | None = None
    _known: Sequence[KnownAnswers] | None = None
    """A trainer's triples; on the first, where all read their own parts, what else answers the held-out ones."""
    _given: Mapping[str, np.ndarray] = {}
    """On the first of them, the held-out triples of ``dataset.test_edges``, which leave the training triples."""
    _plan = ""
    """What a table in a file will take, in a line."""
    _ranked: SharedRanks | None = None
    """Of several trainers the ranks of the held-out triples, on the first one."""
    _stored: PartitionedGraph | None = None
    """The partition in whose files the training triples stay."""
    _typed: HeteroGraph | None = None
    """The entities with the types and ids that the data set gives them, where it has several types."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.take(with_rounds(self.config))

    @cached_property
    def _parts(self) -> PartitionedGraph | None:
        """The partition of which each trainer reads its own triples; None: the first one reads the data set."""
        found = own_partition(self.config, held_out=True)
        plain = found is None or (own_parts.is_plain(found) and found.relation_names is None)
        return None if plain else found

    @cached_property
    def _parts_on_disk(self) -> PartitionedGraph | None:
        """The partition whose training triples may stay in its files: one process trains, with entities in a file."""
        config = self.config
        if config.train.memory is None or config.parallel.mode != "local" or self.reads_whole:
            return None
        parts = unchanged_partition(config.dataset)
        plain = parts is None or (own_parts.is_plain(parts) and parts.relation_names is None)
        return None if plain or parts is None or len(parts.ntypes) > 1 else parts

    def _left_on_disk(self) -> KnowledgeGraph | None:
        """The data set without its training triples, where those stay on the disk: buckets train them, and nothing else
        of the recipe needs them in memory.
        """
        model, parts = self.model, self._parts_on_disk
        needed = model.against_all or model.composed or model.multilevel is not False
        if parts is None or model.buckets == 0 or needed:
            return None
        graph = own_parts.knowledge_graph_of(parts)
        if model.buckets is None:
            self._choose_buckets(graph.num_entities)
        self._stored = parts if self.model.buckets else None
        return graph if self.model.buckets else None

    def load(self) -> KnowledgeGraph:
        """Triples with their splits; without those to train on where trainers read their own parts, or where they stay
        on the disk.
        """
        check_device(self.config.train.device)
        check_rounds(self.config)
        if (left := self._left_on_disk()) is not None:
            graph = left
        elif self._parts is None:
            dataset = read_dataset(self.config.dataset, file_format="triples")
            graph, self._counts = with_held_out_triples(knowledge_graph(dataset), self.config.dataset)
            self._typed = None if graph.entity_types is None else dataset.graph
        else:
            graph = own_parts.knowledge_graph_of(self._parts)
            self._given = test_triples(graph, self.config.dataset)
            graph = replace(graph, parts={**graph.parts, **self._given})
        check_candidates(graph, JUDGED, self.model.candidates)
        if self.model.multilevel is not False:
            multilevel.check(self.config, self._parts, graph.num_entities)
        self.take(with_levels(self.config, self._parts))
        if self.model.buckets is None:
            self._choose_buckets(graph.num_entities)
        copies = int(self.model.valid_every and "valid" in graph.parts)  # the best rows
        placement, kept = self._placement(), self.model.share_kept(self.model.dim, graph.num_entities)
        if not in_memory(placement) and self.model.composed:
            raise ConfigError(
                f"train.memory = {self.config.train.memory!r}: model.table = {self.model.table!r} keeps few rows, in "
                "memory; leave it out"
            )
        if not in_memory(placement):
            self._check_room(graph.num_entities)
            beside_parts(placement, graph.num_entities, self.config)
        if isinstance(placement, File):
            copied, owners = 2 if self.model.valid_every else 1, owners_of(self.config.parallel)
            self._plan = file_plan(graph.num_entities, self.model, placement, copies=copied, processes=owners)
        else:
            check_memory(graph.num_entities, 1, self.model, averages=copies, kept=kept)
            self._plan = memory_plan(graph.num_entities, self.model, self.config.train, tables=kept)
        if self.model.buckets:
            self._plan = "\n".join(filter(None, [self._plan, self._bucket_plan(graph), self._triples_plan(graph)]))
            if not in_memory(placement) and self.model.at_once is None:
                self._warn_of_swaps(graph)
        return graph

    def _choose_buckets(self, num_entities: int) -> None:
        """``train.buckets=auto``: the fewest parts of which memory holds ``HELD``, one of them for the next to come.

        0 where memory holds the table with its state.

        Raises:
            ConfigError: several trainers, or memory that holds too little of the table.
        """
        section = self.config.train
        filled: dict[str, int | None] = {"buckets": 0}
        if self.config.parallel.mode != "local":
            raise ConfigError(
                "train.buckets = auto follows train.memory, which one process has; give several trainers a number of "
                "parts, at least two for each, or leave train.buckets out"
            )
        if section.memory is not None:
            (frames, pages), most = self._held_pages(num_entities), min(MOST_BUCKETS, num_entities)
            found = (0, None) if frames >= pages else _fewest_parts(frames, pages, most)
            if found is None:
                raise ConfigError(
                    f"train.memory = {section.memory!r} does not hold {HELD[-1]} of {most:,} parts of "
                    f"{num_entities:,} entities; raise it, or leave train.buckets out"
                )
            section.check_parts(found[0])
            filled = dict(zip(("buckets", "resident"), found, strict=True))
        self.take(self.config.model_copy(update={"model": self.model.model_copy(update=filled)}))

    def _held_pages(self, num_entities: int, memory: int | None = None) -> tuple[int, int]:
        """``pages_of_rows`` of the entities."""
        return pages_of_rows(num_entities, self.model, self.config.train.table_placement(), memory)

    def _check_room(self, num_entities: int) -> None:
        """Raise a ConfigError where ``train.memory`` holds no page, or not two parts of ``train.buckets``."""
        (frames, pages), parts = self._held_pages(num_entities), self.model.buckets
        least = least_pages(pages, parts)
        if frames < least:
            what = f"two of {parts} parts" if parts else "a page"
            raise ConfigError(
                f"train.memory = {self.config.train.memory!r} does not hold {what} of {num_entities:,} entities with "
                f"their state; raise it{', or train.buckets' if parts else ''}"
            )

    def _bucket_plan(self, graph: KnowledgeGraph) -> str:
        """The order of training by buckets, in a line."""
        parts, held = self.model.buckets, self.model.resident_parts
        if self.model.at_once is not None:
            return plan_of_rounds(graph.num_entities, self.config)
        swaps = self.model.passes * num_swaps(parts, held)
        moved = 2 * swaps / parts * bytes_of_rows(graph.num_entities, self.model)
        pace = ""
        if moved and not in_memory(self._placement()):
            pace = f"; a disk of 1 GB/s keeps up with {graph.num_triples / (moved / 1e9):,.0f} triples/s"
        return (
            f"plan: {parts} parts of the entities, {held} of them in memory at a time, {parts**2} buckets; an epoch "
            f"has {swaps} swaps, which read and write {swaps / parts:.1f} times the table each{pace}"
        )

    def _warn_of_swaps(self, graph: KnowledgeGraph) -> None:
        """Say it where parts are swapped more often than a step is taken, with memory that ends that."""
        section, steps = self.config.train, graph.num_triples / self.model.batch_size
        passes = self.model.passes
        swaps = passes * num_swaps(self.model.buckets, self.model.resident_parts)
        frames, pages = self._held_pages(graph.num_entities)
        if swaps <= steps or frames >= pages:
            return
        memory, fewer, most = section.table_placement().memory_bytes, swaps, min(MOST_BUCKETS, graph.num_entities)
        while fewer > steps:
            memory *= 2
            frames, pages = self._held_pages(graph.num_entities, memory)
            found = None if frames >= pages else _fewest_parts(frames, pages, most)
            fewer = 0 if frames >= pages else swaps if found is None else passes * num_swaps(*found)
        note(
            f"warning: train.memory = {section.memory!r} takes {swaps:,} swaps of parts in an epoch of {steps:,.0f} "
            f"steps, which is slow; with train.memory='{size_text(memory)}' train.buckets=auto takes {fewer:,}"
        )

    def describe(self, dataset: KnowledgeGraph) -> dict[str, Any]:
        """Name and counts."""
        if self._own is not None and dataset.train_elsewhere:
            dataset = replace(dataset, train_elsewhere=self._own.num_triples)
        return described(dataset, self._counts)

    def num_saved(self, dataset: KnowledgeGraph) -> int:
        """Numbers of both tables."""
        width = scorer_of(self.model).relation_dim
        return dataset.num_entities * self.model.dim + dataset.num_relations * width

    def train(self, dataset: KnowledgeGraph | None, job: TrainingJob) -> Trained:
        """Train in this process or with other ranks, each of which has the triples of its own entities."""
        graph, policy = dataset, None
        if job.ranks is not None:
            graph, policy = self._share(dataset, job.ranks)
        assert graph is not None
        joined = _entities(graph) if dataset is not None and self._parts is None and self.model.takes_levels else None
        levels = levels_of_table(self.config, joined, self._parts, job.ranks, self._typed)
        if job.checkpoints is not None and dataset is not None:
            save_ids(job.checkpoints.folder, ENTITY, entity_ids(graph))
            save_ids(job.checkpoints.folder, RELATION, relation_ids(graph))
        if self._plan and job.progress:
            print(self._plan, file=sys.stderr)
        first, spent = self._first(graph, dataset is not None, job)
        on_disk = None
        if self._stored is not None:
            pieces = partial(own_parts.triples_in_pieces, self._stored)
            judged = np.concatenate([np.empty((0, 3), np.int64), *graph.parts.values()])
            self._known = KnownAnswers.to(judged, graph, (triples for _, triples in pieces()))
            on_disk = TriplesOnDisk(pieces, self._placement().path)
        placement, early = beside_parts(self._placement(), graph.num_entities, self.config)
        result = train_kge(
            graph,
            self.model,
            seed=self.config.seed,
            part_policy=policy,
            own=self._own,
            known=self._known,
            num_threads=self.config.train.threads,
            placement=placement,
            device=self.config.train.device,
            progress=job.progress,
            on_epoch=lambda entry: job.log(entry.as_dict()),
            checkpoints=job.checkpoints,
            levels=levels,
            first=first,
            on_disk=on_disk,
            early=early,
        )
        rows = None if result.entities is None or result.relations is None else (result.entities, result.relations)
        if job.ranks is not None and self.config.evaluate.enabled and not result.interrupted:
            sampled = {"num_candidates": self.model.candidates, "seed": self.config.seed}
            group, scorer = job.ranks.group, result.model.scorer
            self._ranked = SharedRanks.of(group, scorer, rows, graph, self._known, **sampled)
        if rows is None:
            return Trained({}, result.interrupted)
        tables = tables_of(graph, *rows)
        return Trained(tables, result.interrupted, {**self._metrics(result), **spent})

    def _first(
        self, graph: KnowledgeGraph, has_triples: bool, job: TrainingJob
    ) -> tuple[tuple[FromParts, FromParts | None] | None, dict[str, Any]]:
        """First rows of entities and relations from a multilevel start, and what it took. Every rank calls it."""
        if self.model.multilevel is False or job.goes_on():
            return None, {}
        begin, sizes = time.perf_counter(), multilevel.sizes_of(self.config, graph.num_entities)
        whole = _entities(graph) if has_triples and self._parts is None else None
        levels = levels_of_start(self.config, whole, self._parts, job.ranks, sizes, self._typed)
        start = multilevel.triples_start(self.config, graph, levels, self._own, job.ranks, progress=job.progress)
        seconds = time.perf_counter() - begin
        return start.models[0], {"multilevel": start.levels, "multilevel_seconds": seconds}

    def _triples_plan(self, graph: KnowledgeGraph) -> str:
        """Where training triples are that stay on the disk, in a line; empty of others."""
        if self._stored is None:
            return ""
        size = RECORD * graph.num_triples + OCCURRENCE * graph.num_entities * (self.model.negative_power > 0)
        where = f"{size_text(size)} by bucket in {self._placement().path}"
        return f"plan: {graph.num_triples:,} triples stay on the disk, {where}"

    def _placement(self) -> Any:
        """Of the entities."""
        return self.config.train.table_placement(self.model.buckets)

    def _share(self, dataset: KnowledgeGraph | None, ranks: Trainers) -> tuple[KnowledgeGraph, PartPolicy | None]:
        """The graph, on other ranks than the first without its triples, and who owns which entity. Every rank calls it.

        The first rank's triples of a file leave the training triples, and it gets to know what else answers the
        held-out ones.
        """
        group, policy = ranks.group, None
        told = None if dataset is None else _facts(dataset)
        facts: KnowledgeGraph = group.gather_objects(told, "triples", (KnowledgeGraph,))[0]
        if self.model.buckets:
            return all_triples(dataset, facts, ranks), None
        if self._parts is not None:
            policy = policy_of(NODE_TYPE, self._parts.assignment().homogeneous(), self._parts.num_parts)
        elif self._follows_parts:
            entities = None if dataset is None else _entities(dataset)
            policy = policies_for(ranks, self.config, entities, self._typed)[NODE_TYPE]
        places = ranks.layout(RangeBook([0, facts.num_entities]) if policy is None else policy.book)
        rows = np.arange(facts.num_entities)
        if policy is not None and policy.original_ids is not None:
            rows = policy.original_ids.find(rows)
        owner = places.owner(torch.from_numpy(rows)).numpy()
        if self._parts is not None:
            held = group.gather_objects(dict(self._given), "held-out triples")[0]
            triples, numbers, removed = own_parts.own_triples(self._parts, ranks, held)
            self._counts = {REMOVED: removed} if removed else {}
        else:
            triples = np.empty((0, 3), np.int64) if dataset is None else dataset.train
            numbers = np.arange(len(triples))
        self._own = OwnTriples.gathered(triples, numbers, facts.num_relations, owner, group)
        if self._parts is not None:
            judged = [np.empty((0, 3), np.int64)] if dataset is None else [*dataset.parts.values()]
            others = self._own.known_to(np.concatenate(judged or [np.empty((0, 3), np.int64)]))
            if dataset is not None:
                known = ((side, np.concatenate([rows, *judged])) for side, rows in others.items())
                self._known = [KnownAnswers.of(rows, side, facts.num_relations) for side, rows in known]
        return facts if dataset is None else dataset, policy

    @property
    def _follows_parts(self) -> bool:
        """Whether triples go to the part of their heads; else every number of ranks trains the same steps."""
        section = self.config.parallel
        return section.partition is not None or section.method != "auto"

    def judge(self, trained: Trained, dataset: KnowledgeGraph, *, progress: bool) -> list[Finding]:
        """Ranks of the held-out parts, by the data set's own rule."""
        if self._ranked is not None:
            return self._ranked.findings()
        return judge_triples(trained.tables, dataset, self.model, self.model, self.config.seed, self._known)

    def ids(self, dataset: KnowledgeGraph) -> dict[str, np.ndarray]:
        """Of both tables."""
        return {ENTITY: entity_ids(dataset), RELATION: relation_ids(dataset)}

    def _metrics(self, result: KGEResult) -> dict[str, Any]:
        last = result.history[-1] if result.history else None
        validated = [line.valid_mrr for line in result.history if line.valid_mrr is not None]
        return {
            **(last.as_dict() if last else {}),
            "best_epoch": result.best_epoch,
            "best_valid_mrr": max(validated, default=None),
            "triples_per_second": round(last.triples / last.seconds) if last and last.seconds else None,
            "parameters": result.model.num_parameters,
            **self._cache(result.model),
        }

    def _cache(self, model: KGEModel) -> dict[str, Any]:
        """Hits and transfers of entities in a file."""
        if not model.entities_in_file:
            return {}
        assert isinstance(model.entity, DistEmbedding)
        return {"cache": model.entity.cache_stats().as_dict()}


def described(graph: KnowledgeGraph, counts: Mapping[str, int]) -> dict[str, Any]:
    """The ``dataset`` section of a run on triples: name and counts."""
    return {
        "name": graph.name,
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        "triples": graph.num_triples,
        **{f"{part}_triples": len(triples) for part, triples in graph.parts.items() if part != "train"},
        **({"counts": dict(counts)} if counts else {}),
    }


def tables_of(graph: KnowledgeGraph, entities: Tensor, relations: Tensor) -> dict[str, Embeddings]:
    """Rows of all entities and relations, shapes (E, D) and (R, W), under their names."""
    return {
        ENTITY: Embeddings(entities.numpy(), entity_ids(graph)),
        RELATION: Embeddings(relations.numpy(), relation_ids(graph)),
    }


def entity_ids(graph: KnowledgeGraph) -> np.ndarray:
    """The names of the entities, or their numbers."""
    return _ids(graph.entities, graph.num_entities)


def relation_ids(graph: KnowledgeGraph) -> np.ndarray:
    """The names of the relations, or their numbers."""
    return _ids(graph.relations, graph.num_relations)


def _facts(graph: KnowledgeGraph) -> KnowledgeGraph:
    """What ranks without its triples know of a graph."""
    return KnowledgeGraph(
        graph.name,
        graph.num_entities,
        graph.num_relations,
        {},
        entity_types=graph.entity_types,
        train_elsewhere=graph.num_triples,
    )


def _entities(graph: KnowledgeGraph) -> HeteroGraph:
    """The entities with an edge for each pair that a training triple joins, to be cut."""
    pairs = np.unique(graph.train[:, 0] * graph.num_entities + graph.train[:, 2])
    ids = {} if graph.entities is None else {NODE_TYPE: entity_ids(graph)}
    edges = {EDGE_TYPE: np.divmod(pairs, graph.num_entities)}
    return HeteroGraph({NODE_TYPE: graph.num_entities}, edges, node_ids=ids, name=graph.name)


def _ids(names: Sequence[str] | Sequence[int] | None, count: int) -> np.ndarray:
    """The names of the rows, or their numbers where there are none or where two are alike."""
    return np.array(names) if names is not None and len(set(names)) == count else np.arange(count)


def _fewest_parts(frames: int, pages: int, most: int) -> tuple[int, int] | None:
    """The fewest parts, ``most`` at most, of which ``frames`` hold ``HELD``, and how many they hold, less one."""
    for least in HELD:
        for parts in range(least, most + 1):
            if (held := frames // (-(-pages // parts) + 1)) >= least:  # a part may begin and end within a page
                return parts, min(held, parts) - 1
    return None

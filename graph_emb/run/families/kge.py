"""Knowledge graphs: TransE, DistMult, ComplEx, RotatE and SimplE on triples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.export import save_ids
from graph_emb.evaluate.triple_ranks import check_candidates, rank_part
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig, TripleSettings
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.models.kge.training import KGEResult, train_kge
from graph_emb.run.evaluation import Finding
from graph_emb.run.family import Family, Trained, TrainingJob
from graph_emb.run.inputs import read_dataset, with_held_out_triples
from graph_emb.run.machine import check_memory
from graph_emb.run.parallel import Trainers, policies_for

ENTITY, RELATION = "entity", "relation"
JUDGED = ("valid", "test")


class KGEFamily(Family):
    """See ``graph_emb.run.family.Family``."""

    _counts: Mapping[str, int] = {}
    _typed: HeteroGraph | None = None
    """The entities with the types and ids that the data set gives them, where it has several types."""

    def load(self) -> KnowledgeGraph:
        """Triples with their splits."""
        dataset = read_dataset(self.config.dataset, file_format="triples")
        graph, self._counts = with_held_out_triples(knowledge_graph(dataset), self.config.dataset)
        self._typed = None if graph.entity_types is None else dataset.graph
        check_candidates(graph, JUDGED, self.model.candidates)
        tables = 2 if self.model.valid_every and "valid" in graph.parts else 1  # a copy keeps the best rows
        check_memory(graph.num_entities, tables, self.model)
        return graph

    def describe(self, dataset: KnowledgeGraph) -> dict[str, Any]:
        """Name and counts."""
        return described(dataset, self._counts)

    def num_saved(self, dataset: KnowledgeGraph) -> int:
        """Numbers of both tables."""
        width = SCORERS[self.model.name](self.model).relation_dim
        return dataset.num_entities * self.model.dim + dataset.num_relations * width

    def train(self, dataset: KnowledgeGraph | None, job: TrainingJob) -> Trained:
        """Train in this process or with other ranks; each of them gets the training triples from the first."""
        graph, policy = dataset, None
        if job.ranks is not None:
            graph = _shared(job.ranks, dataset)
            if self._follows_parts:
                entities = None if dataset is None else _entities(dataset)
                policies = policies_for(job.ranks, self.config, entities, self._typed)
                policy = policies[NODE_TYPE]
        assert graph is not None
        if job.checkpoints is not None and dataset is not None:
            save_ids(job.checkpoints.folder, ENTITY, entity_ids(graph))
            save_ids(job.checkpoints.folder, RELATION, relation_ids(graph))
        result = train_kge(
            graph,
            self.model,
            seed=self.config.seed,
            part_policy=policy,
            num_threads=self.config.train.threads,
            progress=job.progress,
            on_epoch=lambda entry: job.log(entry.as_dict()),
            checkpoints=job.checkpoints,
        )
        if result.entities is None or result.relations is None:
            return Trained({}, result.interrupted)
        tables = tables_of(graph, result.entities, result.relations)
        return Trained(tables, result.interrupted, self._metrics(result))

    @property
    def _follows_parts(self) -> bool:
        """Whether triples go to the part of their heads; else every number of ranks trains the same steps."""
        section = self.config.parallel
        return section.partition is not None or section.method != "auto"

    def judge(self, trained: Trained, dataset: KnowledgeGraph, *, progress: bool) -> list[Finding]:
        """Ranks of the held-out parts, by the data set's own rule."""
        return judge_triples(trained.tables, dataset, self.model, self.model, self.config.seed)

    def _metrics(self, result: KGEResult) -> dict[str, Any]:
        last = result.history[-1] if result.history else None
        validated = [line.valid_mrr for line in result.history if line.valid_mrr is not None]
        return {
            **(last.as_dict() if last else {}),
            "best_epoch": result.best_epoch,
            "best_valid_mrr": max(validated, default=None),
            "triples_per_second": round(last.triples / last.seconds) if last and last.seconds else None,
            "parameters": result.model.num_parameters,
        }


def described(graph: KnowledgeGraph, counts: Mapping[str, int]) -> dict[str, Any]:
    """The ``dataset`` section of a run on triples: name and counts."""
    return {
        "name": graph.name,
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        "triples": len(graph.train),
        **{f"{part}_triples": len(triples) for part, triples in graph.parts.items() if part != "train"},
        **({"counts": dict(counts)} if counts else {}),
    }


def tables_of(graph: KnowledgeGraph, entities: Tensor, relations: Tensor) -> dict[str, Embeddings]:
    """Rows of all entities and relations, shapes (E, D) and (R, W), under their names."""
    return {
        ENTITY: Embeddings(entities.numpy(), entity_ids(graph)),
        RELATION: Embeddings(relations.numpy(), relation_ids(graph)),
    }


def judge_triples(
    tables: Mapping[str, Embeddings], graph: KnowledgeGraph, scorer: KGEConfig, recipe: TripleSettings, seed: int
) -> list[Finding]:
    """Ranks of the held-out parts, by the data set's own rule.

    Args:
        tables: Rows of entities and relations in the order of the graph.
        scorer: Settings of the model that scores them.
        recipe: How many candidates there are.
        seed: Of sampled ones.
    """
    entities, relations = (torch.from_numpy(tables[name].weights) for name in (ENTITY, RELATION))
    made, findings = SCORERS[scorer.name](scorer), []
    for part in JUDGED:
        if part in graph.parts:
            ranks = rank_part(made, entities, relations, graph, part, num_candidates=recipe.candidates, seed=seed)
            findings.append(Finding(f"triples_{part}", f"ranks of the {part} triples", ranks))
    return findings


def entity_ids(graph: KnowledgeGraph) -> np.ndarray:
    """The names of the entities, or their numbers."""
    return _ids(graph.entities, graph.num_entities)


def relation_ids(graph: KnowledgeGraph) -> np.ndarray:
    """The names of the relations, or their numbers."""
    return _ids(graph.relations, graph.num_relations)


def _shared(ranks: Trainers, graph: KnowledgeGraph | None) -> KnowledgeGraph:
    """The training triples on every rank, sent by the first, which keeps all parts."""
    told = None
    if graph is not None:
        parts = {part: graph.parts[part] for part in ("train", "valid") if part in graph.parts}
        types = graph.entity_types
        told = KnowledgeGraph(graph.name, graph.num_entities, graph.num_relations, parts, entity_types=types)
    found = ranks.group.gather_objects(told, "triples", (KnowledgeGraph,))[0]
    return found if graph is None else graph


def _entities(graph: KnowledgeGraph) -> HeteroGraph:
    """The entities with an edge for each pair that a training triple joins, to be cut."""
    pairs = np.unique(graph.train[:, 0] * graph.num_entities + graph.train[:, 2])
    ids = {} if graph.entities is None else {NODE_TYPE: entity_ids(graph)}
    edges = {EDGE_TYPE: np.divmod(pairs, graph.num_entities)}
    return HeteroGraph({NODE_TYPE: graph.num_entities}, edges, node_ids=ids, name=graph.name)


def _ids(names: Sequence[str] | Sequence[int] | None, count: int) -> np.ndarray:
    """The names of the rows, or their numbers where there are none or where two are alike."""
    return np.array(names) if names is not None and len(set(names)) == count else np.arange(count)

"""Ranks of held-out triples at the end of a run: by one process from saved rows, or by all trainers of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError
from graph_emb.evaluate.dealt_triples import rank_part_dealt
from graph_emb.evaluate.triple_ranks import TripleRanks, TripleScorer, rank_part
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig, TripleSettings
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.run.evaluation import Finding
from graph_emb.sampling.known_triples import KnownAnswers
from graph_emb.transport.process_group import ProcessGroup

ENTITY, RELATION = "entity", "relation"
JUDGED = ("valid", "test")


def judge_triples(
    tables: Mapping[str, Embeddings],
    graph: KnowledgeGraph,
    scorer: KGEConfig,
    recipe: TripleSettings,
    seed: int,
    known: Sequence[KnownAnswers] | None = None,
) -> list[Finding]:
    """Ranks of the held-out parts, by the data set's own rule.

    Args:
        tables: Rows of entities and relations in the order of the graph.
        scorer: Settings of the model that scores them.
        recipe: How many candidates there are.
        seed: Of sampled ones.
        known: As of ``rank_part``.
    """
    entities, relations = (torch.from_numpy(tables[name].weights) for name in (ENTITY, RELATION))
    made, findings = scorer_of(scorer), []
    for part in JUDGED:
        if part in graph.parts:
            candidates = recipe.candidates
            ranks = rank_part(made, entities, relations, graph, part, known=known, num_candidates=candidates, seed=seed)
            findings.append(_finding(part, ranks))
    return findings


def _finding(part: str, ranks: TripleRanks) -> Finding:
    return Finding(f"triples_{part}", f"ranks of the {part} triples", ranks)


@dataclass(frozen=True)
class SharedRanks:
    """Ranks of the held-out parts that all trainers counted, before the rows are saved and the others leave.

    Attributes:
        ranks: By part, on the first trainer.
        error: What kept it from having them; the rows are saved all the same.
    """

    ranks: Mapping[str, TripleRanks]
    error: Exception | None = None

    @classmethod
    def of(
        cls,
        group: ProcessGroup,
        scorer: TripleScorer,
        rows: tuple[Tensor, Tensor] | None,
        graph: KnowledgeGraph,
        known: Sequence[KnownAnswers] | None,
        *,
        num_candidates: int | None,
        seed: int,
    ) -> SharedRanks:
        """Count; every trainer calls it. Arguments as of ``rank_part_dealt``, ``graph`` of the first one.

        No error is raised, so that the first trainer saves its rows whatever happens: it has the error.
        """
        found: dict[str, TripleRanks] = {}
        refused: Exception | None = None
        try:
            for part in group.gather_objects([part for part in JUDGED if part in graph.parts], "held-out parts")[0]:
                sampled: Any = {"num_candidates": num_candidates, "seed": seed}
                try:
                    ranks = rank_part_dealt(group, scorer, rows, graph, part, known=known, **sampled)
                except (ConfigError, DataError) as error:  # of the first trainer; the others come to the next part
                    refused = refused or error
                else:
                    found.update({} if ranks is None else {part: ranks})
        except (GraphEmbError, OSError, MemoryError) as error:
            return cls(found, refused or error)
        return cls(found, refused)

    def findings(self) -> list[Finding]:
        """As of ``judge_triples``; raises what kept the ranks from being made."""
        if self.error is not None:
            raise self.error
        return [_finding(part, ranks) for part, ranks in self.ranks.items()]

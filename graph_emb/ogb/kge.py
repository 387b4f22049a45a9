"""Recipes for OGB's knowledge graphs: one training of entities and relations, judged among the given negatives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from pydantic import SerializeAsAny

from graph_emb.evaluate.triple_ranks import TripleRanks, rank_part
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.ogb.methods import Reads, Recipe, Run
from graph_emb.ogb.record import BestScore, SeedResult
from graph_emb.run.versions import peak_memory_mib

HITS = (1, 3, 10)


class KGERecipe(Recipe):
    """A knowledge-graph model.

    Attributes:
        kge: Its recipe.
    """

    kge: SerializeAsAny[KGEConfig]

    reads: ClassVar[Reads] = "triples"
    short: ClassVar[Mapping[str, str]] = {"epochs": "kge.epochs", "dim": "kge.dim", "batch_size": "kge.batch_size"}

    def run(self, data: KnowledgeGraph, run: Run) -> SeedResult:
        """Train on the training triples; heads and tails of the others are ranked among their given negatives.

        The epoch is the best on the validation triples that the recipe looks at; then all triples of both parts are
        ranked once.
        """
        begin = time.perf_counter()
        trained = train_kge(data, self.kge, seed=run.seed, num_threads=run.threads, progress=run.progress)
        if trained.interrupted:
            raise KeyboardInterrupt
        learned = time.perf_counter() - begin
        entities, relations = trained.entities, trained.relations
        assert entities is not None  # the one rank is the first
        assert relations is not None
        validated, values = self.kge.valid_every > 0, {}
        for part in ("valid", "test"):
            values[part] = ogb_values(rank_part(trained.model.scorer, entities, relations, data, part))
        epoch = trained.best_epoch if validated else None
        return SeedResult(
            metric="mrr",
            selected_on="valid" if validated else "none",
            scores={
                name: BestScore(epoch=epoch, valid=values["valid"][name], test=values["test"][name])
                for name in values["test"]
            },
            parameters={"entities": entities.numel(), "relations": relations.numel()},
            seconds={"training": learned, "all": time.perf_counter() - begin},
            peak_memory_mib=peak_memory_mib(),
            history=[line.as_dict() for line in trained.history],
        )


def ogb_values(ranks: TripleRanks) -> dict[str, float]:
    """OGB's four numbers: MRR and Hits@1, 3, 10 over heads and tails, a tie counting half in the rank."""
    return {"mrr": ranks.mrr().realistic, **{f"hits@{k}": ranks.hits(k).realistic for k in HITS}}

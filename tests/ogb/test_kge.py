"""Knowledge-graph recipes: OGB's own Evaluator finds the same numbers, and the best epoch's rows are judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.compat.ogb import evaluator
from graph_emb.evaluate.triple_ranks import rank_part, score_given
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.ogb.kge import KGERecipe, ogb_values
from graph_emb.ogb.methods import Run
from graph_emb.sampling.known_triples import HEAD, TAIL
from tests import ogb_layout

SMALL = KGEConfig(
    model="distmult", dim=8, num_negatives=4, chunk_size=16, batch_size=32, epochs=4, valid_every=1, patience=0
)


@pytest.mark.parametrize("name", ["ogbl-biokg", "ogbl-wikikg2"])
def test_the_values_are_ogbs_with_ties(tmp_path: Path, name: str) -> None:
    """Rows of few distinct numbers, so that scores are often equal; heads and tails in one list, as in OGB."""
    ogb_layout.WRITERS[name](tmp_path)
    data, generator = knowledge_graph(load_dataset(name, tmp_path)), torch.Generator().manual_seed(0)
    scorer = SCORERS["distmult"](SMALL)
    entities = torch.randint(2, (data.num_entities, 8), generator=generator).float()
    relations = torch.randint(2, (data.num_relations, 8), generator=generator).float()
    given, triples = data.negatives["test"], data.parts["test"]
    pairs = [
        score_given(scorer, entities, relations, triples, side, where)
        for side, where in ((given.heads, HEAD), (given.tails, TAIL))
    ]
    positive, negative = (torch.cat(scores) for scores in zip(*pairs, strict=True))
    assert (positive[:, None] == negative).any()
    theirs = evaluator(name).eval({"y_pred_pos": positive, "y_pred_neg": negative})
    found = ogb_values(rank_part(scorer, entities, relations, data, "test"))
    assert found == {key: pytest.approx(theirs[f"{key}_list"].mean().item(), rel=1e-6) for key in found}
    assert set(found) == {"mrr", "hits@1", "hits@3", "hits@10"}


def test_the_best_validated_epoch_is_judged_and_counted(tmp_path: Path) -> None:
    ogb_layout.write_wikikg2(tmp_path)
    data = knowledge_graph(load_dataset("ogbl-wikikg2", tmp_path))
    found = KGERecipe(kge=SMALL).run(data, Run(0, 0, 1))
    assert found.selected_on == "valid"
    assert found.parameters == {"entities": 40 * 8, "relations": 2 * 8}
    by_epoch = [line["valid_mrr"] for line in found.history]
    assert found.scores["mrr"].epoch == int(np.argmax(by_epoch)) + 1
    assert found.scores["mrr"].valid == pytest.approx(max(by_epoch))  # all validation triples were looked at


def test_without_validation_the_last_epoch_is_taken_and_said(tmp_path: Path) -> None:
    ogb_layout.write_wikikg2(tmp_path)
    recipe = KGERecipe(kge=SMALL.replace(valid_every=0))
    found = recipe.run(knowledge_graph(load_dataset("ogbl-wikikg2", tmp_path)), Run(0, 0, 1))
    assert (found.selected_on, found.scores["mrr"].epoch) == ("none", None)

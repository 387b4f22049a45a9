"""Knowledge graphs whose entities lie in a file: the rows of a run in memory, by program and by command line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import BATCHES_AHEAD, train_kge


def graph(entities: int = 400) -> KnowledgeGraph:
    rng = np.random.default_rng(0)
    triples = np.stack([rng.integers(0, n, 900) for n in (entities, 3, entities)], axis=1)
    return KnowledgeGraph("random", entities, 3, {"train": triples, "valid": triples[:50]})


@pytest.mark.parametrize("policy", ["lru", "lookahead"])
@pytest.mark.parametrize("model", ["complex", "transe"])
def test_entities_in_a_file_train_as_those_in_memory(tmp_path: Path, local_mode: None, model: str, policy: str) -> None:
    config = KGEConfig(model=model, dim=16, num_negatives=8, chunk_size=8, batch_size=16, epochs=2, valid_every=1)
    host = train_kge(graph(), config, num_threads=1)
    placement = ge.File(tmp_path, memory="24KiB", policy=policy)
    tiered = train_kge(graph(), config, num_threads=1, placement=placement)
    assert host.entities is not None
    assert tiered.entities is not None
    assert torch.equal(host.entities, tiered.entities)
    assert [line.valid_mrr for line in host.history] == [line.valid_mrr for line in tiered.history]
    stats = tiered.model.entity.cache_stats()
    assert stats.dirty_writes > 0
    assert stats.misses > 0
    assert len(tiered.model.entity.shard._pages.frames.announced) == 0  # type: ignore[attr-defined]
    assert BATCHES_AHEAD > 1


def test_one_setting_puts_entities_into_a_file_and_changes_no_row(
    tmp_path: Path, fresh_mode: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph_emb.core.progress.LINE_S", 0.0)
    triples = tmp_path / "triples.tsv"
    triples.write_text("\n".join(f"a{h}\tr{r}\ta{t}" for h, r, t in graph().parts["train"]) + "\n", encoding="utf-8")
    rows = {}
    for name, train in {"memory": {}, "file": {"memory": "32KiB", "scratch": str(tmp_path / "rows")}}.items():
        result = ge.pipeline(
            model="transe", dataset=str(triples), out=tmp_path / name, evaluate=False, dim=16, num_negatives=8,
            chunk_size=64, progress=True,
            train={"epochs": 2, "batch_size": 64, "threads": 1, **train},
        )  # fmt: skip
        rows[name] = result.embeddings.weights
        ge.shutdown()
    assert np.array_equal(rows["memory"], rows["file"])
    assert result.metrics["train"]["cache"]["dirty_writes"] > 0
    assert list((tmp_path / "rows").iterdir()) == []
    told = capfd.readouterr().err
    assert re.search(r"random ids miss \d+%, a disk of 100,000 pages/s keeps up with [\d,]+ rows/s", told)
    assert re.search(r"\d+% of entities in memory, \d+% waiting, [\d,]+ MiB/s", told)
    page = (tmp_path / "file" / "report.html").read_text(encoding="utf-8")
    for name in ("% of rows in memory", "seconds waiting for rows", "MiB read and written, rows"):
        assert name in page
        assert name not in (tmp_path / "memory" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "netmf", "train": {"memory": "1MiB"}}, "memory"),
        ({"model": "transe", "train": {"memory": "much"}}, "memory 'much'"),
        ({"model": "transe", "train": {"policy": "lru"}}, "policy has no effect while all rows are in memory"),
    ],
)
def test_settings_without_a_meaning_are_refused(options: dict, said: str, fresh_mode: None) -> None:
    with pytest.raises(ConfigError, match=said):
        ge.pipeline(dataset="nothing.tsv", **options)

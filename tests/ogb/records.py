"""Records of seeds, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graph_emb.ogb.record import BestScore, Hardware, SeedRecord, SeedResult, write_record

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "ogb": "1.3.6"}
MACHINE = Hardware(cpu="a cpu", cores=2, memory_gib=7.5)


def result(test: float = 0.25, valid: float = 0.3, metric: str = "hits@20", **more: Any) -> SeedResult:
    facts: dict[str, Any] = {
        "metric": metric,
        "selected_on": "valid",
        "scores": {metric: BestScore(epoch=5, valid=valid, test=test)},
        "parameters": {"embedding": 1000, "link predictor": 24},
        "seconds": {"all": 12.4},
        "peak_memory_mib": 321,
    }
    return SeedResult(**{**facts, **more})


def record(seed: int = 0, found: SeedResult | None = None, **more: Any) -> SeedRecord:
    facts: dict[str, Any] = {
        "status": "finished",
        "dataset": "ogbl-ddi",
        "model": "deepwalk",
        "seed": seed,
        "embedding_seed": seed,
        "settings": {"predictor": {"lr": 0.01, "epochs": 100}, "features": "none"},
        "command": "python examples/ogb/ddi.py --root data --out runs/ddi",
        "hardware": MACHINE,
        "versions": VERSIONS,
        "result": result() if found is None else found,
    }
    return SeedRecord(**{**facts, **more})


def started(seed: int = 0, **more: Any) -> SeedRecord:
    return record(seed, **more).model_copy(update={"status": "started", "result": None})


def ten(**more: Any) -> list[SeedRecord]:
    """Seeds 0 to 9, with test values 0.20, 0.21 ... and valid ones 0.1 above."""
    return [record(seed, result(0.2 + 0.01 * seed, 0.3 + 0.01 * seed), **more) for seed in range(10)]


def write(folder: Path, records: list[SeedRecord]) -> Path:
    for one in records:
        write_record(folder / f"seed-{one.seed}.json", one)
    return folder

"""The example of learnable edge embeddings, and what its ablation must show."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "edge_embeddings.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("edge_embeddings", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_only_learned_edge_rows_tell_the_classes(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main(["--seeds", "1", "--epochs", "30", "--nodes", "300"])
    assert found["learned"][0] > 0.85
    for variant in ("random", "zero", "shuffled", "removed"):
        assert found[variant][0] < 0.55, f"{variant}: one class in three is chance"
    assert capsys.readouterr().out.splitlines()[0].startswith("learned")


def test_rows_follow_the_partitions_edge_policy(example: ModuleType, tmp_path: Path) -> None:
    data = example.generated(seed=0, num_nodes=60)
    policy, place = example.edge_policy(data, 3, str(tmp_path / "parts"))
    assert policy.policy_str == "edge~_N:_E:_N"
    assert policy.book.num_parts == 3
    assert sorted(place.tolist()) == list(range(len(data.src)))
    alone = example.accuracy("learned", data, epochs=5)
    assert example.accuracy("learned", data, epochs=5, policy=policy) == alone, "a policy moves rows, not results"

"""Where rows and pairs meet; tests/models/gnn/test_train.py trains."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graph_emb.models.gnn import sage
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.gnn.tasks import LinkTask
from graph_emb.models.gnn.train import train_sage
from graph_emb.models.gnn.trainer import Trainer
from tests.models.gnn.planted import planted_links


class OneDevice(TorchDispatchMode):
    """A GPU's rule for torch's device "meta", whose tensors have no values: what meets in an operator lies together.

    Copies may cross; a number or a copy that comes back from the device is zero.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        away = given[0].is_meta if given else False
        if name == "aten::_local_scalar_dense" and away:
            return 0.0
        if name == "aten::_to_copy":
            if away and kwargs.get("device") == torch.device("cpu"):
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        elif name != "aten::copy_" and len({tensor.device for tensor in given if tensor.dim()}) > 1:
            raise RuntimeError(f"{name}: tensors on {[str(tensor.device) for tensor in given]}")
        return func(*args, **kwargs)


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> OneDevice:
    """The mode, and stand-ins for what torch lacks on "meta": autocast, sums over neighbours, updates of tables."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(Trainer, "step", lambda self, *networks: None)
    monkeypatch.setattr(sage, "mean_neighbours", lambda rows, edges: rows[: edges.num_destinations])
    return OneDevice()


@pytest.mark.parametrize("options", [{}, {"fanouts": (4, 4), "batch_size": 64}], ids=["whole graph", "sampled"])
@pytest.mark.parametrize("own_targets", [False, True])
def test_training_and_judging_keep_rows_and_pairs_on_one_device(
    own_targets: bool, options: dict[str, Any], one_device: OneDevice
) -> None:
    """The judged pairs stayed on the CPU while the rows were on the network's device; no GPU is needed to see it."""
    graph, task = planted_links()
    if own_targets:
        own = {
            part: {"edge": task.split[part]["edge"], "target_node_neg": task.split[part]["edge_neg"].reshape(30, 4)}
            for part in ("valid", "test")
        }
        task = LinkTask({"train": task.split["train"], **own}, ("mrr",))
    config = SAGEConfig(dim=4, hidden_dim=4, epochs=1, eval_every=1, **options)
    with one_device:
        result = train_sage(graph, task, config, device="meta")
    assert result.tables["_N"].shard.weight.is_meta
    assert result.history[0].test is not None


def test_tensors_of_two_devices_do_not_meet(one_device: OneDevice) -> None:
    with one_device, pytest.raises(RuntimeError, match="aten::index_select"):
        torch.empty(3, 2, device="meta").index_select(0, torch.tensor([1]))

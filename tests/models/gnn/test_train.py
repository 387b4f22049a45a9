"""Training R-GCN and GraphSAGE in one process."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import message_graph
from graph_emb.models.epochs import Evaluation
from graph_emb.models.gnn import networks
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.gnn.objectives import Objective
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, TripleTask
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.models.gnn.trainer import Trainer
from graph_emb.models.schedule import share_of_rate
from tests.models.gnn.planted import planted, planted_links, planted_triples

QUICK = RGCNConfig(epochs=30, lr=0.02, dropout=0.0)
LINKS = SAGEConfig(dim=16, hidden_dim=16, epochs=40, batch_size=64, lr=0.02, dropout=0.2, clip_norm=None, patience=4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fanouts": (4, 4), "batch_size": 16, "epochs": 10},
        {"num_bases": 1, "self_loop": False},
        {"inputs": "onehot", "hidden_dim": 8},
        {"inputs": "basis", "num_bases": 2, "fanouts": (4, 4), "batch_size": 16, "epochs": 10},
    ],
    ids=["whole graph", "sampled", "bases", "onehot", "basis, sampled"],
)
def test_rgcn_learns_classes_that_only_the_edges_tell(options: dict[str, object]) -> None:
    graph, task = planted()
    result = train_rgcn(graph, task, QUICK.replace(**options))  # type: ignore[arg-type]
    assert result.best().test is not None
    assert result.best().test["accuracy"] > 0.8, "one in three is chance"
    assert set(result.tables) == {"user", "tag"}
    still = {**options, "epochs": 1, "lr": 1e-9, "dense_lr": 0.02}
    first = train_rgcn(graph, task, QUICK.replace(**still))  # type: ignore[arg-type]
    moved = result.tables["user"].weight[:] - first.tables["user"].weight[:]
    assert (moved.abs().amax(dim=1) > 0.01).all(), "every user's row learns: it is an input of its neighbours"


def test_a_seed_repeats_a_run_and_another_seed_does_not() -> None:
    graph, task = planted()
    config = QUICK.replace(epochs=3, dropout=0.5)
    runs = [[e.as_dict() for e in train_rgcn(graph, task, config, seed=seed).history] for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_row_has_a_share_for_each_relation_or_base_and_one_for_itself() -> None:
    graph, task = planted()

    def widths(**options: Any) -> list[int]:
        config = QUICK.replace(epochs=1, hidden_dim=8, **options)
        return [table.embedding_dim for table in train_rgcn(graph, task, config).tables.values()]

    assert widths() == [16, 16]
    assert widths(inputs="onehot") == [16, 16]  # each type has one relation
    assert widths(inputs="onehot", self_loop=False) == [8, 8]
    assert widths(inputs="basis", num_bases=3) == [32, 32]
    features = {"tag": np.eye(30, dtype=np.float32)}
    found = train_rgcn(graph, task, QUICK.replace(inputs="onehot"), features=features)
    assert list(found.tables) == ["user"]
    assert found.best().test["accuracy"] > 0.8  # type: ignore[index]
    with pytest.raises(ConfigError, match="dim = 24 has no effect on inputs='onehot' where no node type has features"):
        train_rgcn(graph, task, QUICK.replace(inputs="onehot", dim=24))
    for options in ({"inputs": "basis"}, {"inputs": "onehot", "num_layers": 1}):
        with pytest.raises(ConfigError, match=r"num_bases|num_layers = 1"):
            RGCNConfig(**options)


def test_the_random_state_of_the_program_is_left_alone() -> None:
    graph, task = planted()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train_rgcn(graph, task, QUICK.replace(epochs=1, dropout=0.5))
    assert torch.rand(1) == expected


def test_features_replace_the_table_of_their_type() -> None:
    graph, task = planted(noise=1.0)  # the edges tell nothing
    given = np.eye(3)[np.asarray(task.labels)]
    result = train_rgcn(graph, task, QUICK, features={"user": given})
    assert set(result.tables) == {"tag"}
    assert result.best().test == {"accuracy": 1.0}


def test_several_labels_are_learned_and_unknown_ones_are_left_out() -> None:
    graph, single = planted()
    targets = np.eye(3)[np.asarray(single.labels)]
    targets[single.split["train"][:5], 0] = np.nan
    result = train_rgcn(graph, NodeTask("user", targets, single.split), QUICK)
    assert result.best().test is not None
    assert result.best().test["rocauc"] > 0.85


def test_without_a_validation_part_the_last_epoch_is_judged() -> None:
    graph, task = planted()
    split = {part: task.split[part] for part in ("train", "test")}
    result = train_rgcn(graph, NodeTask("user", task.labels, split), QUICK.replace(epochs=3))
    assert [(e.epoch, e.valid) for e in result.history] == [(3, None)]
    with pytest.raises(ConfigError, match="patience=2 needs a validation part"):
        train_rgcn(graph, NodeTask("user", task.labels, split), QUICK.replace(patience=2))


def test_sage_tells_edges_from_other_pairs_and_stops_early() -> None:
    graph, task = planted_links()
    for options in ({}, {"fanouts": (5, 5), "batch_size": 64}):
        result = train_sage(graph, task, LINKS.replace(eval_every=1, **options))  # type: ignore[arg-type]
        assert result.best().test is not None
        assert result.best().test["rocauc"] > 0.9
        assert result.best("hits@20").test is not None
        assert len(result.history) < LINKS.epochs, "four evaluations without a better one end the training"
        assert result.history[-1].epoch == result.best().epoch + 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_networks_train_and_are_judged_on_the_gpu() -> None:
    """The judged pairs of links stayed on the CPU while the rows were on the GPU."""
    graph, task = planted()
    links, link_task = planted_links()
    for options in ({}, {"fanouts": (4, 4), "batch_size": 16}):
        config = QUICK.replace(epochs=1, **options)  # type: ignore[arg-type]
        found = [train_rgcn(graph, task, config, device="cuda")]
        config = LINKS.replace(epochs=1, eval_every=1, **options)  # type: ignore[arg-type]
        found.append(train_sage(links, link_task, config, device="cuda"))
        for result in found:
            assert all(table.shard.weight.is_cuda for table in result.tables.values())
            assert result.best().valid is not None
            assert all(0.0 <= value <= 1.0 for value in result.best().valid.values())


def test_sage_counts_the_parameters_of_ogbs_recipe() -> None:
    """Rows of 256, two layers of 2 x 256 x 256 + 256, a predictor of 256 x 256 + 256 + 257; OGB reports 1,421,057."""
    graph, task = planted_links()
    result = train_sage(graph, task, SAGEConfig(epochs=1, eval_every=1))
    assert result.num_parameters == 1_421_057 - (4267 - 40) * 256


@pytest.mark.parametrize("kind", ["classes", "links", "triples"])
def test_rates_of_tables_and_networks_follow_the_schedule_step_by_step(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[float]] = []
    apply = InputRows.step

    def step(self: InputRows, *args: Any) -> None:
        assert self.optimizer is not None
        told[-1].append(self.optimizer.param_groups[0]["lr"])
        apply(self, *args)

    def step_all(self: Trainer, *of: Any) -> None:
        told.append([])
        whole(self, *of)
        told[-1] += [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]

    whole = Trainer.step
    monkeypatch.setattr(InputRows, "step", step)
    monkeypatch.setattr(Trainer, "step", step_all)
    how: dict[str, Any] = {"epochs": 3, "lr": 0.02, "dense_lr": 0.05, "lr_decay": "linear", "warmup": 0.25}
    if kind == "classes":
        train_rgcn(*planted(), QUICK.replace(batch_size=30, fanouts=(2, 2), **how))
    elif kind == "links":
        train_sage(*planted_links(), LINKS.replace(patience=None, eval_every=3, **how))
    else:
        sizes = {"num_negatives": 8, "chunk_size": 16, "batch_size": 64}
        graph = planted_triples()
        train_rgcn(message_graph(graph), TripleTask(graph), RGCNConfig(dim=8, hidden_dim=8, **sizes, **how))
    total = len(told)
    assert total > 3, "several steps an epoch"
    for number, rates in enumerate(told):
        done = min(number + 1, 0.25 * total) if number < 0.25 * total else number
        share = share_of_rate("linear", 0.25, done / total)
        assert rates == pytest.approx([0.02 * share] + [0.05 * share] * (len(rates) - 1))


def test_rates_fall_where_validations_are_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    whole = Trainer.step

    def step(self: Trainer, *of: Any) -> None:
        whole(self, *of)
        told.extend(group["lr"] for group in self.optimizers[0].param_groups)

    monkeypatch.setattr(Trainer, "step", step)
    train_rgcn(*planted(), QUICK.replace(epochs=5, lr=1e-12, lr_decay="plateau", lr_factor=0.1, lr_patience=2))
    assert [rate / 1e-12 for rate in told] == pytest.approx([1, 1, 1, 0.1, 0.1]), "the first validation is the best"


def test_input_rows_lose_numbers_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: dict[bool, list[float]] = {True: [], False: []}
    forward = networks.RGCN.forward

    def watched(self: networks.RGCN, blocks: Any, rows: Any) -> Any:
        shares[self.training].append(float((rows["user"] == 0).float().mean()))
        return forward(self, blocks, rows)

    monkeypatch.setattr(networks.RGCN, "forward", watched)
    for options in ({}, {"fanouts": (4, 4), "batch_size": 16}):
        train_rgcn(*planted(), QUICK.replace(epochs=2, input_dropout=0.4, **options))
    assert np.mean(shares[True]) == pytest.approx(0.4, abs=0.05)
    assert set(shares[False]) == {0.0}


@pytest.mark.parametrize("epoch", [1, 3])
def test_ctrl_c_keeps_what_was_trained(epoch: int) -> None:
    def stop(found: Evaluation) -> None:
        if found.epoch == epoch:
            raise KeyboardInterrupt

    graph, task = planted()
    result = train_rgcn(graph, task, QUICK, on_evaluation=stop)
    assert result.interrupted
    assert [e.epoch for e in result.history] == list(range(1, epoch + 1))
    as_long = train_rgcn(graph, task, QUICK.replace(epochs=epoch))
    assert not as_long.interrupted
    assert torch.equal(result.tables["user"].weight[:], as_long.tables["user"].weight[:])


def test_ctrl_c_before_the_first_evaluation_keeps_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Objective, number: int) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(Objective, "epoch", stop)
    result = train_rgcn(*planted(), QUICK)
    assert (result.interrupted, result.history, result.as_dict()["metrics"]) == (True, (), {})
    assert set(result.tables) == {"user", "tag"}
    triples = planted_triples()
    ranked = train_rgcn(message_graph(triples), TripleTask(triples), RGCNConfig(hidden_dim=4)).ranked
    assert ranked is not None
    assert [rows.shape for rows in ranked] == [(30, 4), (2, 4)]


def test_what_does_not_fit_the_graph_is_refused() -> None:
    graph, task = planted()
    with pytest.raises(ConfigError, match=r"one node and one edge type; the graph has 2 and 2; take train_rgcn"):
        train_sage(graph, task)
    with pytest.raises(ConfigError, match="unknown node type 'nobody'"):
        train_rgcn(graph, NodeTask("nobody", task.labels, task.split))
    with pytest.raises(ConfigError, match="unknown node type of features 'nobody'"):
        train_rgcn(graph, task, features={"nobody": np.zeros((1, 1))})
    with pytest.raises(ShapeError, match=r"expected floating \(120, width\)"):
        train_rgcn(graph, task, features={"user": np.zeros((3, 2))})
    with pytest.raises(ShapeError, match="120 labels for 30 nodes of type 'tag'"):
        train_rgcn(graph, dataclasses.replace(task, ntype="tag"))
    links, link_task = planted_links()
    small = HeteroGraph({"_N": 39}, {e: (s % 39, d % 39) for e, (s, d) in links.edges.items()})
    with pytest.raises(DataError, match=r"train 'edge' names node 39, outside \[0, 39\), the graph's nodes"):
        train_sage(small, link_task, LINKS)


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
    monkeypatch.setattr(networks, "mean_neighbours", lambda rows, edges: rows[: edges.num_destinations])
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

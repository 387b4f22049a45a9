"""A device that is none of this machine's is refused by name, where torch's own words named no argument."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.core.devices import device_of
from graph_emb.core.errors import ConfigError
from graph_emb.run.machine import check_device

NONE = ["x", "", "cuda:99", 99, -1, True, 1.5, None]


@pytest.mark.parametrize("device", NONE, ids=str)
def test_what_is_no_device_here_is_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"^table 'a': device=.* is no device of this machine \(.*\); here: cpu"):
        device_of("table 'a': device", device)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_processor_is_taken(device: Any) -> None:
    assert device_of("device", device).type == "cpu"


def a_table() -> ge.DistEmbedding:
    return ge.DistEmbedding(4, 2)


def composed() -> ge.ComposedEmbedding:
    return ge.ComposedEmbedding(torch.tensor([[0], [1]]), 2, kind="position")


IDS = torch.tensor([1])
CALLS: dict[str, Callable[[Any], Any]] = {
    "DistEmbedding": lambda device: ge.DistEmbedding(4, 2, device=device),
    "NodeEmbedding": lambda device: ge.NodeEmbedding(4, 2, "node", device=device),
    "ComposedEmbedding": lambda device: ge.ComposedEmbedding(torch.tensor([[0], [1]]), 2, "position", device=device),
    "a growing table": lambda device: ge.DistEmbedding(ge.growing(4), 2, device=device),
    "call": lambda device: a_table()(IDS, device=device),
    "call of a composed table": lambda device: composed()(IDS, device=device),
    "call of a quantized table": lambda device: a_table().quantize()(IDS, device=device),
    "lookup": lambda device: ge.lookup([(a_table(), IDS)], device=device),
    "bag": lambda device: a_table().bag(IDS, torch.tensor([0]), device=device),
    "bag of a composed table": lambda device: composed().bag(IDS, torch.tensor([0]), device=device),
    "bag of a growing table": lambda device: ge.DistEmbedding(ge.growing(4), 2).bag(IDS, IDS * 0, device=device),
}


@pytest.mark.parametrize("name", CALLS)
def test_tables_and_their_calls_name_the_device(name: str) -> None:
    with pytest.raises(ConfigError, match=r"device='x' is no device of this machine"):
        CALLS[name]("x")


def test_a_run_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"train\.device='x' is no device of this machine"):
        check_device("x")

"""The group of the processes: what it is told, and what it leaves behind."""

from __future__ import annotations

import pytest
import torch.distributed as dist

import graph_emb as ge


@pytest.mark.parametrize("backend", ["glo", "cpu:glo", "gloo,cuda:nkcl", "undefined"])
def test_an_unknown_backend_is_named(backend: str) -> None:
    with pytest.raises(ge.ConfigError, match=r"unknown backend '.*'; known: .*gloo"):
        ge.init(mode="collective", backend=backend)
    assert not dist.is_initialized()

"""Memory is counted before it is taken."""

from __future__ import annotations

import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.run.machine import check_memory


def test_weights_state_and_the_returned_copy_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    class Memory:
        available = 4 * 1000 * 10 * 3

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    check_memory(1000, 10, 2, "sgd")  # two tables and the copy that is returned
    check_memory(1000, 10, 1, "sgd", averages=1)
    with pytest.raises(ConfigError, match=r"1000 nodes need 0.0 GiB"):
        check_memory(1000, 10, 2, "sgd", averages=1)
    with pytest.raises(ConfigError, match=r"model.dim = 11: 1000 nodes need 0.0 GiB"):
        check_memory(1000, 11, 2, "sgd")
    with pytest.raises(ConfigError, match="a rule with less state"):
        check_memory(1000, 10, 2, "adagrad")

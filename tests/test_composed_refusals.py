"""A composed table that cannot be is refused by name, before a table is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from tests.test_composed import LEVELS, D, N

pytestmark = pytest.mark.usefixtures("local_mode")


@pytest.mark.parametrize(
    ("levels", "options", "error", "message"),
    [
        (LEVELS * 1.0, {}, ShapeError, "levels have shape .* of float64; give integers"),
        (LEVELS[:, 0], {}, ShapeError, r"levels have shape \(24,\)"),
        (LEVELS - 1, {}, ConfigError, "levels have the part -1"),
        (LEVELS[:, ::-1], {}, ConfigError, "not nested: part 0 of level 1 lies in several parts of level 0"),
        (LEVELS, {"num_buckets": 0}, ConfigError, "num_buckets is 0"),
        (LEVELS, {"num_hashes": 0}, ConfigError, "num_hashes is 0"),
        (LEVELS, {"kind": "hashed"}, ConfigError, "unknown kind of a composed table 'hashed'"),
        (LEVELS, {"scope": "some"}, ConfigError, "unknown scope of the hashes 'some'"),
        (LEVELS, {"scope": "part", "num_buckets": 1}, ConfigError, "1 buckets for 2 parts"),
        (LEVELS, {"level_sizes": (2, 4, 7)}, ConfigError, r"level_sizes \(2, 4, 7\)"),
        (LEVELS, {"level_sizes": 3}, ConfigError, "level_sizes 3; give a number of parts for each of 3 levels"),
        (LEVELS, {"level_sizes": (2, 4, 8.5)}, ConfigError, r"level_sizes \(2, 4, 8.5\); give a number of parts"),
        (LEVELS, {"seed": 1.5, "init_func": ge.initializers.Zeros()}, ConfigError, "seed is 1.5; it must be an"),
        (LEVELS, {"own_rows": 3}, ConfigError, r"own_rows of shape \(\); give the ids of nodes"),
        (LEVELS[:, :0], {}, ConfigError, "kind 'position-hash' needs the levels of a partition, not 24 nodes"),
        (LEVELS[:, :0], {"kind": "hash", "scope": "part"}, ConfigError, "scope 'part' needs the levels of a partition"),
        ([[0, 2**40]], {}, ConfigError, "levels have the part 1099511627776; parts are numbered from 0, to 2147483647"),
        (np.array([[2**63]], np.uint64), {}, ConfigError, "levels have the part 9223372036854775808"),
        ([[0, 1], [2]], {}, ShapeError, "levels are no matrix"),
        (torch.eye(3).long().to_sparse(), {}, ShapeError, "levels are no matrix"),
        (-1, {"kind": "hash"}, ConfigError, "-1 nodes; give a number from 1 to"),
        (True, {"kind": "full"}, ConfigError, "True nodes; give a number from 1 to"),
        (2**62, {"kind": "full"}, ConfigError, "4611686018427387904 nodes; give a number from 1 to"),
        (24, {}, ConfigError, "needs the levels of a partition"),
        (LEVELS, {"kind": "position", "num_hashes": 2}, ConfigError, "num_hashes has no effect on kind 'position'"),
        (24, {"kind": "full", "num_buckets": 4096}, ConfigError, "num_buckets has no effect on kind 'full'"),
        (LEVELS, {"kind": "position", "scope": "part"}, ConfigError, "scope='part' has no effect on kind 'position'"),
        (24, {"kind": "hash", "level_sizes": (2, 4, 8)}, ConfigError, "level_sizes has no effect on kind 'hash'"),
        (LEVELS, {"kind": "position", "seed": 0, "init_func": ge.initializers.Zeros()}, ConfigError, "seed has no"),
        (LEVELS, {"init_func": ge.initializers.FromArray(torch.ones(N, D))}, ConfigError, "has a row for each node"),
        (LEVELS, {"part_policy": ge.RangeBook([0, 25])}, PartitionError, "25"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(levels: Any, options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ge.ComposedEmbedding(levels, D, **options)

"""A process that compiles a loop gets the bits of one that loads it from numba's cache, also where sums may reorder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graph_emb.core.compiled import njit
from tests.conftest import CHECKOUT

DIGESTS = """
import hashlib
import numpy as np
import torch
from graph_emb.core.addresses import kind_of
from graph_emb.models.kge.comparisons import L1, L2, MODULUS
from graph_emb.optim.merging import sum_groups
from graph_emb.table.row_sums import _factor_gradients, _terms
from graph_emb.transport.copy_kernels import take_changes

rng = np.random.default_rng(0)

def drawn(*shape):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

def told(name, *values):
    print(name, *(hashlib.sha256(value.detach().numpy().tobytes()).hexdigest()[:12] for value in values))

for dim in (4, 34, 128):
    rows, before, copies, at = drawn(40, dim), drawn(20, dim), drawn(20, dim), np.arange(20)
    share = np.ones(1, np.float32)
    arrays = rows.numpy(), at, np.array([0, 1]), None, before.numpy(), copies.numpy(), share, None, None
    take_changes.run(kind_of(arrays, (True, True)), [arrays], 1)
    told("rows", rows)
    for name, compared in (("L1", L1), ("L2", L2), ("moduli", MODULUS)):
        queries, entities = drawn(2, 30, dim).requires_grad_(), drawn(2, 40, dim).requires_grad_()
        with torch.no_grad():
            told(f"plain {name}", compared.chunks(queries, entities))
        scores = compared.chunks(queries, entities)
        (scores * drawn(2, 30, 40)).sum().backward()
        told(name, scores, queries.grad, entities.grad)
    factors = torch.empty(30, 2)
    jobs = _terms([rows], rng.integers(0, 40, (3, 30)), factors, drawn(30, dim))
    _factor_gradients.run(kind_of(jobs[0]), jobs, 1)
    told("factors", factors)
    sums = torch.empty(1, dim)
    sum_groups(rows, np.zeros(1, np.int64), np.append(np.arange(1, 40), -1), sums)
    told("sums", sums)
"""


def test_compiled_and_loaded_loops_give_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    said, cached = [], []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", DIGESTS], env=environment, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE
        )
        said.append(ran.stdout.decode())
        cached.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nbc")})
    assert len(cached[0]) > 5
    assert cached[0] == cached[1]  # the second process compiled nothing
    assert len(said[0].splitlines()) == 27
    assert said[0] == said[1]


def test_a_parallel_loop_may_not_reorder_sums() -> None:
    with pytest.raises(AssertionError, match=r"core\.addresses"):
        njit(parallel=True, fastmath={"reassoc"})(len)

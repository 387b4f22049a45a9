"""What most processes of the tests import: the two servers that fork them import this first."""

from __future__ import annotations

import gc
import importlib

from numba.core import registry

from graph_emb.core.imports import has_frozen

MODULES = [
    "graph_emb.checkpoint.loading",
    "graph_emb.checkpoint.saving",
    "graph_emb.cli.launch",
    "graph_emb.cli.train",
    "graph_emb.evaluate.link_prediction",
    "graph_emb.evaluate.node_classification",
    "graph_emb.models.gnn.train",
    "graph_emb.models.gnn.trainer",
    "graph_emb.models.kge.training",
    "graph_emb.models.skipgram.training",
    "graph_emb.optimizer",
    "graph_emb.run.launch.job",
    "graph_emb.run.launch.restarts",
    "graph_emb.run.pipeline",
    "graph_emb.run.report.page",
    "graph_emb.transport.collective",
    "graph_emb.transport.kvstore.client",
    "graph_emb.transport.kvstore.server",
    "pandas",
    "pytest",
    "tabulate",
    "tests.transport.kvstore.cluster",
    "torch._dynamo",
    "torch.distributed.run",
]

for name in MODULES:
    importlib.import_module(name)
registry.cpu_target.typing_context.refresh()  # numba fills them before its first function
registry.cpu_target.target_context.refresh()
gc.collect()
gc.freeze()  # else every process would look through, and so copy, all that it shares
assert has_frozen()  # each of a thousand forks would count these objects at its first import
gc.set_threshold(10_000, 10, 50)  # by Python's own, 700 and 10, a tenth of the time goes to looking for garbage

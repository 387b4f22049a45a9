"""config.yaml files as run folders of version 0.1 hold them still load, or are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.kge.config import ComplExConfig
from graph_emb.models.skipgram.config import DeepWalkConfig
from graph_emb.run.about import about, about_now

REST = """
seed: 3
dataset: {name: any, root: null, download: false, labels: null, hold_out: 0.0, directed: null, weights: null,
  duplicates: null, self_loops: null, format: null, num_nodes: null, ids: null, header: null, separator: null,
  comment: null, columns: null}
parallel: {mode: local, trainers: 1, servers: 0, method: auto, negatives: global, exchange_walks: null,
  negative_pool: 0, hogwild: false, timeout: 300.0}
checkpoint: {every: null, keep_last: 2, background: false}
evaluate: {enabled: true, ratios: [0.1, 0.5, 0.9], shuffles: 3, hits: [10, 20, 50, 100], scorer: dot}
output: {formats: [npy], context: none}
"""
DEEPWALK = """
model: {dim: 64, num_walks: 10, walk_length: 40, window: 10, window_weighting: linear, num_negatives: 5.0,
  shared_negatives: 32, negative_power: 0.75, subsample: 0.0, tables: 2, block: 20, warm_start: null,
  warm_start_partial: false, name: deepwalk}
train: {rule: sgd, lr: 0.025, lr_decay: linear, epochs: 2, path: auto, batch_size: null, threads: 1, log_interval: 1.0}
"""
COMPLEX = """
model: {dim: 256, loss: softmax, margin: 0.0, temperature: 1.0, num_negatives: 512, chunk_size: 512,
  negative_power: 0.0, in_batch: false, filter_negatives: true, subsampling: false, n3: 0.05, l2: 0.0, valid_every: 5,
  patience: 3, valid_triples: 2000, candidates: null, init_std: 0.1, name: complex}
train: {rule: adagrad, lr: 0.1, lr_decay: linear, epochs: 10, path: optimizer, batch_size: 1024, threads: null,
  log_interval: 1.0}
"""
SAGE = """
model: {dim: 256, hidden_dim: 256, num_layers: 2, dropout: 0.5, weight_decay: 0.0, dense_lr: 0.001, init: xavier,
  fanouts: null, clip_norm: 1.0, ema_decay: 0.0, eval_every: 5, patience: null, num_seeds: 1, features: true,
  name: sage, predictor_layers: 2, negatives: non_edges, precision: float32}
train: {rule: adam, lr: 0.005, lr_decay: null, epochs: 200, path: optimizer, batch_size: 65536, threads: null,
  log_interval: 1.0}
"""


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (DEEPWALK, DeepWalkConfig(dim=64, lr=0.025, lr_decay="linear", epochs=2)),
        (COMPLEX, ComplExConfig(lr=0.1)),
        (SAGE, SAGEConfig(dense_lr=0.001)),
    ],
    ids=["deepwalk", "complex", "sage"],
)
def test_a_configuration_of_an_earlier_version_means_the_same(text: str, settings: Any) -> None:
    config = config_from(yaml.safe_load(REST + text))
    assert config.model == settings
    assert config.seed == 3
    assert config_from(config.sections()) == config


@pytest.mark.parametrize("text", [DEEPWALK, COMPLEX, SAGE], ids=["deepwalk", "complex", "sage"])
def test_a_checkpoint_of_an_earlier_version_is_of_the_same_run(text: str) -> None:
    """A resume compared field by field: one that a newer version added, or names otherwise, was a difference."""
    sections = yaml.safe_load(REST + text)
    saved = {
        f"{section}.{name}": value
        for section in ("dataset", "model", "train")
        for name, value in sections[section].items()
    }
    assert about_now({**saved, "seed": 3}) == about(config_from(sections))
    other = about_now({**saved, "seed": 3, "model.dim": 8})
    assert {name for name, value in other.items() if value != about(config_from(sections))[name]} == {"model.dim"}


def test_a_value_that_the_model_no_longer_has_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^train.path = 'autograd' has no effect on complex; leave it out$"):
        config_from(yaml.safe_load(REST + COMPLEX.replace("path: optimizer", "path: autograd")))

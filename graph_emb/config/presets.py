"""Settings that a search or tries by hand found on a kind of data, by model: sections of a run's configuration.

Each was chosen on the validation part of the data set that names it; docs/results.md has the tries, and the scores on
the test part. What a preset leaves out is the model's default.
"""

from __future__ import annotations

from typing import Any

from graph_emb.core.errors import ConfigError, unknown_name

Sections = dict[str, Any]


def _over_all(epochs: int, batch_size: int, **model: Any) -> Sections:
    """Entities against all others by cross entropy, with reciprocal relations, as Lacroix et al. 2018 have them."""
    kind = {"training": "1vsall", "reciprocal": True, "init_std": 0.001, **model}
    return {"model": kind, "train": {"epochs": epochs, "batch_size": batch_size}}


LARGE = _over_all(30, 1000, dim=512, valid_every=3)
PRESETS: dict[str, dict[str, Sections]] = {
    "complex": {
        "fb15k237": LARGE,
        "codex_s": _over_all(
            40, 512, dim=1024, n3=0.005, dropout=0.2, label_smoothing=0.1, products="bfloat16",
            valid_every=8, valid_triples=0, patience=0,
        ),
    },
    "distmult": {"fb15k237": LARGE},
    "rotate": {
        "fb15k237": {
            "model": {"dim": 1000, "reciprocal": True, "valid_every": 10}, "train": {"lr": 0.0005, "epochs": 90},
        },
    },
    "transe": {
        "codex_s": {
            "model": {"margin": 5.0, "reciprocal": True, "valid_every": 15, "valid_triples": 0, "patience": 0},
            "train": {"epochs": 150},
        },
    },
    "rgcn": {"aifb": {"model": {"inputs": "basis", "num_bases": 10}}},
}  # fmt: skip
"""By model and by the data set on which they were chosen."""


def preset(model: str, name: str) -> Sections:
    """The sections of a preset.

    Raises:
        ConfigError: a model without any, or another name.

    Example:
        >>> from graph_emb.config import config_from, preset
        >>> base = {"model": "transe", "dataset": "codex_s"}
        >>> config_from(base, preset("transe", "codex_s")).model.margin
        5.0
    """
    known = PRESETS.get(model)
    if known is None:
        raise ConfigError(f"preset {name!r}: {model} has none; these have: {', '.join(PRESETS)}")
    if name not in known:
        raise unknown_name(f"preset of {model}", name, known)
    return known[name]

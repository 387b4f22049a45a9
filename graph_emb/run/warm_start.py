"""First rows of a run from a file: what ``model.warm_start`` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from graph_emb.config import RunConfig
from graph_emb.formats.warm_start import FromFile
from graph_emb.models.skipgram.config import PlainWalkConfig
from graph_emb.models.skipgram.model import usual_rows


def first_rows(model: PlainWalkConfig, seed: int, node_ids: NDArray[Any] | None) -> FromFile | None:
    """The initializer of the token table; None: the model's own.

    Args:
        model: Names the file; its usual rows take the places of ids that the file lacks, where that is allowed.
        seed: Of the usual rows.
        node_ids: The id of each node, shape (N,); None: 0 .. N-1.
    """
    if model.warm_start is None:
        return None
    if not model.warm_start_partial:
        return FromFile(model.warm_start, node_ids)
    return FromFile(model.warm_start, node_ids, missing=usual_rows(model, seed), unknown="ignore")


def absolute_path(config: RunConfig) -> RunConfig:
    """The configuration with the file's path made absolute, so that it works from any folder."""
    model = config.model
    if not isinstance(model, PlainWalkConfig) or model.warm_start is None:
        return config
    absolute = str(Path(model.warm_start).expanduser().absolute())
    return config.model_copy(update={"model": model.model_copy(update={"warm_start": absolute})})

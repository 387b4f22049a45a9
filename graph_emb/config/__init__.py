"""Typed configuration of a run: what may be set, its limits, and how files and overrides combine."""

from graph_emb.config.merge import config_from, config_text, parse_override, place_key, read_config_file, section_from
from graph_emb.config.schema import (
    MODELS,
    DatasetSection,
    DeepWalkSection,
    EvaluateSection,
    LineSection,
    Metapath2VecSection,
    ModelBase,
    Node2VecSection,
    OutputSection,
    RunConfig,
    TrainSection,
)

__all__ = [
    "MODELS",
    "DatasetSection",
    "DeepWalkSection",
    "EvaluateSection",
    "LineSection",
    "Metapath2VecSection",
    "ModelBase",
    "Node2VecSection",
    "OutputSection",
    "RunConfig",
    "TrainSection",
    "config_from",
    "config_text",
    "parse_override",
    "place_key",
    "read_config_file",
    "section_from",
]

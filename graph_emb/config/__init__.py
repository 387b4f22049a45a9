"""Typed configuration of a run: the sections, their limits, and how files and overrides combine."""

from graph_emb.config.merge import (
    config_from,
    config_text,
    fields_of,
    parse_override,
    place_key,
    read_config_file,
    section_from,
)
from graph_emb.config.presets import PRESETS, preset
from graph_emb.config.schema import MODELS, DatasetSection, EvaluateSection, OutputSection, RunConfig, TrainSection

__all__ = [
    "MODELS",
    "PRESETS",
    "DatasetSection",
    "EvaluateSection",
    "OutputSection",
    "RunConfig",
    "TrainSection",
    "config_from",
    "config_text",
    "fields_of",
    "parse_override",
    "place_key",
    "preset",
    "read_config_file",
    "section_from",
]

"""What decides a run's result: the fields that a checkpoint keeps and compares when a run goes on with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from graph_emb.config import RunConfig, config_from, fields_of
from graph_emb.core.errors import ConfigError
from graph_emb.core.paths import user_path
from graph_emb.core.storage import xxh64_of

WAY_TO_TRAIN = ("parallel", "checkpoint")
FREE_SECTIONS = (*WAY_TO_TRAIN, "evaluate", "output")
FREE_FIELDS = {
    "dataset": ("root", "download"),
    "train": ("threads", "log_interval", "placement", "device", "memory", "scratch", "policy"),
}
"""Fields that may change when a run goes on: trainers, output, evaluation, and where the data lies."""
OWN_FILES = ("dataset.labels", "dataset.split", "dataset.test_edges", "dataset.new_edges")
"""Fields that name files, of which the content decides, wherever they lie."""
CONTENT = "content "
"""How the checksums of a field's files begin."""


def is_free(path: str, sections: Collection[str] = FREE_SECTIONS) -> bool:
    """Whether a field may change when a run goes on.

    Args:
        sections: Those whose fields all may.
    """
    section, _, name = path.partition(".")
    return section in sections or name in FREE_FIELDS.get(section, ())


def about(config: RunConfig) -> dict[str, Any]:
    """The fields that decide the result of a run, by path; of files that are here their checksum."""
    kept: dict[str, Any] = {path: value for path, value in fields_of(config).items() if not is_free(path)}
    for path in OWN_FILES:
        if isinstance(kept[path], str):
            kept[path] = _content_of(kept[path])
        elif kept[path]:
            kept[path] = [_content_of(place) for place in kept[path]]
    return kept


def _content_of(place: str) -> str:
    """The checksums of the files at a place; the place where there is none."""
    files = _files_at(place)
    return CONTENT + " ".join(map(xxh64_of, files)) if files else place


def _files_at(place: str) -> list[Path]:
    """A file, or those of a folder by name; none where there is neither."""
    path = user_path(place)
    return [path] if path.is_file() else sorted(own for own in path.glob("*") if own.is_file())


def about_now(saved: Mapping[str, Any], config: RunConfig | None = None) -> Mapping[str, Any]:
    """The fields that a checkpoint names, one of an earlier version too, as this version names them.

    Args:
        config: Of the run that goes on: its files that are not here, but with the first rank, are not compared.
            None: all are.
    """
    own = {} if config is None else {path: value for path, value in about(config).items() if path in OWN_FILES}
    unseen = {path: value for path, value in own.items() if value and not str(value).lstrip("['").startswith(CONTENT)}
    sections: dict[str, Any] = {}
    for path, value in saved.items():
        section, _, name = path.partition(".")
        if name:
            sections.setdefault(section, {})[name] = value
        else:
            sections[section] = value
    try:
        return about(config_from(sections)) | unseen
    except ConfigError:
        return saved  # a field that is gone: the comparison names it

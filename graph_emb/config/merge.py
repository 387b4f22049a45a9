"""How files, flags and overrides become one checked configuration, with errors that give the field's path."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from graph_emb.config.schema import MODELS, RunConfig
from graph_emb.core.errors import ConfigError, nearest, unknown_name
from graph_emb.core.settings import and_more, limit_of, short
from graph_emb.core.yaml_text import parse_yaml
from graph_emb.models.settings import ModelSettings, paths_of

Nested = dict[str, Any]
SectionT = TypeVar("SectionT", bound=BaseModel)
MAX_CONFIG_BYTES = 1 << 20
SECTIONS = {
    "dataset": "name", "model": "name", "train": "lr", "parallel": "trainers", "checkpoint": "every",
    "evaluate": "shuffles", "output": "formats",
}  # fmt: skip
"""Every section and one of its fields, for the errors."""
NO_EFFECT: dict[str, Any] = {"train.path": "optimizer", "parallel.negatives": "global", "parallel.negative_pool": 0}
"""Values that earlier versions wrote for models without such a field; None elsewhere."""
NAMED_SECTIONS = ("dataset", "model")
"""Sections of which the bare word is the name: ``model: deepwalk``."""


def config_from(*layers: Mapping[str, Any]) -> RunConfig:
    """The configuration that nested mappings describe; a later one wins over an earlier one, field by field.

    What no layer sets is the default of the model's settings, or of the section.

    Raises:
        ConfigError: a key is unknown, or a value is missing, of the wrong type or outside its limits.
    """
    merged: Nested = {}
    for layer in layers:
        _merge_into(merged, layer)
    dataset = merged.get("dataset")
    if isinstance(dataset, dict) and dataset.get("weights", "none") is None:
        del dataset["weights"]  # run folders of earlier versions name every field, and this one was renamed
    model = merged.get("model")
    if isinstance(model, dict) and "name" in model:
        if str(model["name"]) not in MODELS:
            raise unknown_name("model", model["name"], MODELS)
        return _checked(RunConfig, _with_model_fields(merged, MODELS[str(model["name"])]), merged, ())
    return _checked(RunConfig, merged, merged, ())


def _with_model_fields(merged: Nested, settings: type[ModelSettings]) -> Nested:
    """Every field of the model moved from the section that says it to the model."""
    name, paths = merged["model"]["name"], paths_of(settings)
    for key, value in merged["model"].items():
        if key in settings.model_fields and paths.get(key) != f"model.{key}":
            raise ConfigError(_no_such_field(f"model.{key}", value, name))
    placed = {section: dict(values) if isinstance(values, dict) else values for section, values in merged.items()}
    fields = {path: field for field, path in paths.items()}
    for path in {path for model in MODELS.values() for path in paths_of(model).values()}:
        section, _, key = path.partition(".")
        if section == "model" or key not in placed.get(section, {}):
            continue
        value = placed[section].pop(key)
        if path not in fields:
            if value != NO_EFFECT.get(path):
                raise ConfigError(f"{path} = {short(value)} has no effect on {name}; leave it out")
        elif value is not None or type(None) in get_args(settings.model_fields[fields[path]].annotation):
            placed["model"][fields[path]] = value
    return placed


def section_from(name: str, values: Mapping[str, Any]) -> Any:
    """One section alone, such as ``evaluate``, of the class that ``RunConfig`` gives it.

    Raises:
        ConfigError: as ``config_from``.
    """
    (section,) = _sections_in(RunConfig.model_fields[name].annotation)
    return _checked(section, values, {name: values}, (name,))


def _checked(section: type[SectionT], values: Any, merged: Nested, where: tuple[str, ...]) -> SectionT:
    try:
        return section.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError(_describe(details[0], merged, where) + and_more(details)) from None


def config_text(config: RunConfig) -> str:
    """The whole configuration as YAML, defaults included; reading it back gives an equal configuration."""
    return yaml.safe_dump(config.sections(), sort_keys=False, allow_unicode=True)


def fields_of(config: RunConfig) -> dict[str, Any]:
    """Every field of a configuration by its path, in plain values."""
    fields: dict[str, Any] = {}
    for section, values in config.sections().items():
        fields |= {f"{section}.{name}": v for name, v in values.items()} if section != "seed" else {"seed": values}
    return fields


def read_config_file(path: str | Path) -> Nested:
    """The sections of a YAML file; whether its keys are known is checked by ``config_from``.

    Raises:
        ConfigError: the file is missing, too large, not text, not YAML, names a key twice or is no mapping.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: {size} bytes is above the limit of {MAX_CONFIG_BYTES}; is it a config file?")
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; --config takes a YAML file") from None
    except ValueError as error:  # ConfigError is one, too
        raise ConfigError(f"{path}: not a YAML text file ({' '.join(str(error).split())})") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: holds {type(content).__name__} at the top; write sections such as 'model:'")
    return content


def parse_override(text: str, model: str | None = None) -> Nested:
    """The nested mapping that ``key=value`` stands for, such as ``train.lr=0.05``; the value is read as YAML.

    Args:
        model: Whose settings are suggested in place of an unknown key; None: those of all models.
    Raises:
        ConfigError: there is no '=', the key is unknown, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {text!r}: write key=value, such as train.lr=0.05")
    try:
        parsed = parse_yaml(value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {value[:60]!r} is not a YAML value ({error})") from None
    return place_key(key.strip(), parsed, model=model)


def place_key(key: str, value: Any, known: Collection[str] | None = None, model: str | None = None) -> Nested:
    """A value under its dotted path; a field that only one section has may be named without its section.

    A section's own field goes before those of the networks inside a section: ``epochs`` is ``train.epochs``.

    Args:
        known: Dotted paths of all fields; None: those of a run's configuration.
        model: As for ``parse_override``.
    Raises:
        ConfigError: the key is unknown.
    """
    known = _known_paths(RunConfig) if known is None else known
    paths = [path for path in known if path == key or path.endswith(f".{key}")]
    paths = [path for path in paths if path.count(".") == min(path.count(".") for path in paths)]
    if key in NAMED_SECTIONS and f"{key}.name" in known and not isinstance(value, Mapping):
        paths = [f"{key}.name"]
    elif key in known:
        paths = [key]
    if not paths:
        raise _unknown_key(key, value, known if model is None else _paths_with(model))
    if len(paths) > 1:
        raise ConfigError(f"{key} = {value!r}: which one of {', '.join(sorted(paths))}?")
    nested: Any = value
    for part in reversed(paths[0].split(".")):
        nested = {part: nested}
    return nested


def _merge_into(target: Nested, layer: Mapping[str, Any], path: str = "") -> None:
    for key, value in layer.items():
        if not path and key in SECTIONS:
            value = _as_section(key, value)
        if isinstance(value, Mapping):
            below = target.get(key)
            target[key] = {**below} if isinstance(below, dict) else {}
            _merge_into(target[key], value, f"{path}{key}.")
        else:
            target[key] = value


def _as_section(key: str, value: Any) -> Mapping[str, Any]:
    """A section of a file: a mapping, nothing, or for model and dataset also the bare name."""
    if value is None:
        return {}
    if isinstance(value, str) and key in NAMED_SECTIONS:
        return {"name": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} = {value!r}: is a section; set its fields, such as {key}.{SECTIONS[key]}")
    return value


@cache
def _known_paths(section: type[BaseModel], prefix: str = "") -> frozenset[str]:
    """Dotted paths of all fields, the sections themselves included; those of every model."""
    paths: set[str] = set()
    for name, field in section.model_fields.items():
        paths.add(prefix + name)
        for choice in _sections_in(field.annotation):
            known = paths_of(choice).values() if issubclass(choice, ModelSettings) else None
            paths.update(_known_paths(choice, f"{prefix}{name}.") if known is None else known)
    return frozenset(paths)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType):
        return [found for choice in get_args(annotation) for found in _sections_in(choice)]
    return []


def _describe(detail: ErrorDetails, merged: Nested, above: tuple[str, ...]) -> str:
    """One line for one finding of pydantic: path, value, limit."""
    where = [*above, *(str(part) for part in detail["loc"])]
    if len(where) > 1 and where[0] == "model" and where[1] in MODELS:
        chosen = MODELS[where.pop(1)]  # pydantic puts the model's name into the path
        where = [*paths_of(chosen).get(where[1], f"model.{where[1]}").split("."), *where[2:]] if where[1:] else where
    path = ".".join(where)
    if detail["type"] == "extra_forbidden":
        return _no_such_field(path, detail["input"], merged.get("model", {}).get("name"))
    if detail["type"] == "missing" or detail["type"] == "union_tag_not_found":
        missing = f"{path}.name" if path in ("model", "dataset") else path
        hint = f"; known: {', '.join(MODELS)}" if path == "model" else ""
        return f"{missing}: is missing{hint}"
    if not path:  # a finding about two sections names them itself
        return limit_of(detail)
    if isinstance(detail["input"], Mapping):  # so does one about two fields
        return f"{path}: {limit_of(detail)}"
    return f"{path} = {short(detail['input'])}: {limit_of(detail)}"


def _no_such_field(path: str, value: Any, chosen: str | None) -> str:
    known = _known_paths(RunConfig)
    if path in known:  # a field of another model
        others = [name for name, settings in MODELS.items() if path in paths_of(settings).values()]
        return f"{path} = {short(value)}: {chosen} has no such field; {', '.join(others)} has"
    return str(_unknown_key(path, value, _paths_with(chosen)))


def _paths_with(model: str | None) -> frozenset[str]:
    """Dotted paths of the fields that mean something to a model; of an unknown one those of all."""
    known = _known_paths(RunConfig)
    if model not in MODELS:
        return known
    of_models = {path for settings in MODELS.values() for path in paths_of(settings).values()}
    own = {*paths_of(MODELS[model]).values()}
    return frozenset(path for path in known - (of_models - own) if path not in MODELS[model].without)


def _unknown_key(key: str, value: Any, known: Collection[str]) -> ConfigError:
    section, _, field = key.rpartition(".")
    siblings = sorted(
        p.rpartition(".")[2] for p in known if section and f".{p}".rpartition(".")[0].endswith(f".{section}")
    )
    near = nearest(key, SECTIONS) if isinstance(value, Mapping) else None  # what a mapping was meant for
    near = near or _nearest_path(field, section if siblings else "", siblings, known)
    hint = f" (did you mean {near!r}?)" if near else ""
    names = ", ".join(siblings or sorted(path for path in known if "." not in path))
    said = key if key.isprintable() else short(key)
    return ConfigError(f"{said} = {short(value)}: unknown key; known: {names}{hint}")


def _nearest_path(field: str, section: str, siblings: list[str], known: Collection[str]) -> str | None:
    """The same field of another section, else the nearest of this section, else the nearest of all."""
    paths = {path.rpartition(".")[2]: path for path in sorted(known, key=lambda p: (p.count("."), p), reverse=True)}
    if field in paths:
        return paths[field]
    near = nearest(field, siblings)
    return f"{section}.{near}" if near else paths.get(nearest(field, paths) or "")

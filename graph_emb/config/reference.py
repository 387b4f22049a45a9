"""Every setting with its default and limits, for ``graph-emb train MODEL --help`` and the reference in the docs.

``python -m graph_emb.config.reference`` prints the page of the docs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from textwrap import wrap
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import annotated_types as limits
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from graph_emb.config.presets import PRESETS
from graph_emb.config.schema import MODELS, RunConfig
from graph_emb.models.settings import ModelSettings, paths_of

WIDTH = 110
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
NO_DEFAULT = "required"


@dataclass(frozen=True)
class Setting:
    """A field of a run's configuration.

    Attributes:
        path: Such as "train.lr".
        default: As YAML says it, or "required".
        allowed: Limits or choices; empty where any value of the type will do.
        description: Of the field.
    """

    path: str
    default: str
    allowed: str
    description: str


def settings_of(model: str) -> list[Setting]:
    """The settings that a model's run takes: the model's own, then those of the run; the others would be refused."""
    settings = MODELS[model]
    own = [_setting(path, settings.model_fields[name]) for name, path in paths_of(settings).items() if name != "name"]
    taken = tuple({setting.path for setting in own} | set(settings.without))
    others = [one for one in _of_runs() if not f"{one.path}.".startswith(tuple(f"{path}." for path in taken))]
    order = ("model", "train", "parallel", "output")
    own.sort(key=lambda setting: order.index(setting.path.partition(".")[0]))
    return [*own, *others]


def help_of(model: str) -> str:
    """The settings of a model as text for a terminal."""
    found = settings_of(model)
    lines = [f"presets of {model}, as --preset NAME: {', '.join(PRESETS[model])}", ""] if model in PRESETS else []
    lines += [f"settings of {model}, as key=value:"]
    for setting in found:
        lines.append(f"  {setting.path}={setting.default}" + (f"  ({setting.allowed})" if setting.allowed else ""))
        lines += [f"      {line}" for line in wrap(setting.description, WIDTH - 6)]
    return "\n".join(lines)


def markdown() -> str:
    """The reference of all models and sections as a page."""
    parts = [
        "# Configuration",
        "Every setting, as `key=value` on the command line, as a keyword of `ge.pipeline`, or in the section of a YAML "
        "file. `graph-emb train MODEL --help` prints those of one model. This page is made from the settings' own "
        "definitions by `python -m graph_emb.config.reference`.",
        "## Of every run",
        _table(_of_runs()),
    ]
    whole = {model: [setting for setting in settings_of(model) if setting not in _of_runs()] for model in MODELS}
    for model, settings in whole.items():
        about = cleandoc(MODELS[model].__doc__ or "").splitlines()[0]
        parts += [f"## {model}", about, _table(settings)]
        parts += [_preset_line(name, values) for name, values in PRESETS.get(model, {}).items()]
        if without := MODELS[model].without:
            parts.append(f"Without effect, and refused: {', '.join(f'`{path}`' for path in without)}.")
    return "\n\n".join(parts) + "\n"


def _preset_line(name: str, sections: Mapping[str, Any]) -> str:
    words = [f"{section}.{key}={value}" for section, values in sections.items() for key, value in values.items()]
    return f"`--preset {name}` is `{' '.join(words).replace('True', 'true')}`."


def _table(settings: Sequence[Setting]) -> str:
    rows = [
        f"| `{own.path}` | {f'`{own.default}`' if own.default != NO_DEFAULT else own.default} | "
        f"{own.allowed.replace('|', ' or ')} | {own.description} |"
        for own in settings
    ]
    return "\n".join(["| setting | default | allowed | |", "|---|---|---|---|", *rows])


@cache
def _of_runs() -> tuple[Setting, ...]:
    """The run's own sections, in their order."""
    return (*_walk(RunConfig, ""),)


def _walk(section: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if _is_section(one)]
        if name == "model":
            continue
        if inner and NoneType not in get_args(field.annotation):
            yield from _walk(inner[0], f"{prefix}{name}.")
            continue
        yield _setting(f"{prefix}{name}", field)
        for one in inner:
            yield from _walk(one, f"{prefix}{name}.")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, ModelSettings)


def _setting(path: str, field: FieldInfo) -> Setting:
    default = NO_DEFAULT if field.is_required() else _as_text(field.get_default())
    return Setting(path, default, _allowed(field), " ".join((field.description or "").split()))


def _as_text(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return value if isinstance(value, str) else json.dumps(value)


def _allowed(field: FieldInfo) -> str:
    """Choices, else the limits of the number or of the numbers inside."""
    choices = [*_choices(field.annotation)]
    if choices:
        return ", ".join(map(_as_text, choices))
    found = [text for mark in (*field.metadata, *_marks(field.annotation)) for text in _limits(mark)]
    return ", ".join(dict.fromkeys(found))


def _choices(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
        return
    for inner in get_args(kind):
        yield from _choices(inner)


def _marks(kind: Any) -> Iterator[Any]:
    """What ``Annotated`` says inside of unions and tuples."""
    for mark in getattr(kind, "__metadata__", ()):
        yield from mark.metadata if isinstance(mark, FieldInfo) else [mark]
    for inner in get_args(kind):
        yield from _marks(inner)


def _limits(mark: Any) -> Iterator[str]:
    if isinstance(mark, limits.GroupedMetadata):
        return
    found: Mapping[str, Any] = {name: getattr(mark, name) for name in SIGNS if hasattr(mark, name)}
    for name, value in found.items():
        yield f"{SIGNS[name]} {value:,}" if isinstance(value, int) else f"{SIGNS[name]} {value:g}"


if __name__ == "__main__":
    print(markdown(), end="")

from __future__ import annotations

import pytest

from graph_emb import ConfigError
from graph_emb.config import PRESETS, config_from, preset
from graph_emb.models.settings import paths_of

ALL = [(model, name) for model, presets in PRESETS.items() for name in presets]


@pytest.mark.parametrize(("model", "name"), ALL)
def test_every_value_of_a_preset_is_a_setting_that_differs_from_the_default(model: str, name: str) -> None:
    base = {"model": model, "dataset": name}
    plain, chosen = (config_from(base, *layers).model for layers in ((), (preset(model, name),)))
    fields = {path: field for field, path in paths_of(type(plain)).items()}
    for section, values in preset(model, name).items():
        for key, value in values.items():
            field = fields[f"{section}.{key}"]
            assert getattr(chosen, field) == value != getattr(plain, field), f"{section}.{key}"


def test_unknown_presets_are_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset of complex 'codex'; .*did you mean 'codex_s'"):
        preset("complex", "codex")
    with pytest.raises(ConfigError, match="deepwalk has none; these have: complex,"):
        preset("deepwalk", "codex_s")

"""Every recipe by its name."""

from __future__ import annotations

import pytest

from graph_emb.compat.ogb import metadata
from graph_emb.core.errors import ConfigError
from graph_emb.ogb.recipes import RECIPES, recipe_named, recipes_of


def test_a_name_is_a_data_set_of_ogb_and_a_model() -> None:
    for name, recipe in RECIPES.items():
        dataset, model = recipe_named(name)
        assert metadata(dataset).name == dataset
        assert recipes_of(dataset)[model] is recipe


def test_an_unknown_recipe_names_the_nearest_and_lists_the_known() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown recipe 'ogbl-ddi/deepwlak'; known: .*ogbn-mag/rgcn.* \(did you mean 'ogbl-ddi/deepwalk'\?\)",
    ):
        recipe_named("ogbl-ddi/deepwlak")

"""The knowledge-graph models by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from graph_emb.models.kge.complex import ComplEx
from graph_emb.models.kge.distmult import DistMult
from graph_emb.models.kge.rotate import RotatE
from graph_emb.models.kge.scorer import Scorer
from graph_emb.models.kge.simple import SimplE
from graph_emb.models.kge.transe import TransE


class Recipe(Protocol):
    """What scorers are made from; ``KGEConfig`` is one."""

    @property
    def dim(self) -> int: ...
    @property
    def margin(self) -> float: ...
    @property
    def norm(self) -> int: ...
    @property
    def init_std(self) -> float: ...


SCORERS: dict[str, Callable[[Recipe], Scorer]] = {
    "transe": lambda recipe: TransE(recipe.dim, recipe.margin, recipe.norm),
    "distmult": lambda recipe: DistMult(recipe.dim, recipe.init_std),
    "complex": lambda recipe: ComplEx(recipe.dim, recipe.init_std),
    "rotate": lambda recipe: RotatE(recipe.dim, recipe.margin),
    "simple": lambda recipe: SimplE(recipe.dim, recipe.init_std),
}
"""Makes the scorer of each model; a width that does not fit it is a ConfigError."""

"""Settings of spectral embeddings, which are computed at once rather than learned in steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from graph_emb.core.settings import Count, Number
from graph_emb.models.search import Space, Span, one_of
from graph_emb.models.settings import ModelSettings
from graph_emb.models.skipgram.config import EdgePolicy


class SpectralConfig(ModelSettings, EdgePolicy):
    """Fields of models that factorise a matrix of the graph; they have no steps, and no update rule."""

    family: ClassVar[str] = "spectral"
    rates: ClassVar[Mapping[str, float]] = {}
    hidden: ClassVar[tuple[str, ...]] = tuple(ModelSettings.model_fields)
    without: ClassVar[tuple[str, ...]] = (
        "train.placement",
        "train.device",
        "train.log_interval",
        "parallel.mode",
        "checkpoint.every",
        "output.context",
    )

    name: str
    dim: Count = Field(default=128, ge=1, le=65_536, description="width of an embedding; below the number of nodes")
    iterations: Count = Field(default=5, ge=1, le=1_000, description="power iterations of the randomised factorisation")


class NetMFConfig(SpectralConfig):
    """The matrix that DeepWalk factorises implicitly, factorised at once; Qiu et al., WSDM 2018. For small graphs.

    Attributes:
        window, num_negatives: DeepWalk's.
        rank: Eigenpairs of the normalised adjacency matrix that stand for it (the paper's large window); None: all of
            it, as powers of the matrix, which takes longer.
    """

    search: ClassVar[Space] = {
        "window": one_of(1, 2, 5, 10),
        "num_negatives": one_of(1.0, 2.0, 5.0),
        "rank": one_of(64, 128, 256, 512, None),
    }

    name: Literal["netmf"] = "netmf"
    window: Count = Field(default=10, ge=1, le=10_000, description="largest distance of a context in a walk")
    num_negatives: Number = Field(default=1.0, gt=0, le=1_000, description="negatives of a context pair")
    rank: Count | None = Field(default=256, ge=1, description="eigenpairs that stand for the graph; null: all of it")


class ProNEConfig(SpectralConfig):
    """A sparse factorisation of the edges, propagated through a band of the graph's spectrum; Zhang et al., IJCAI 2019.

    Attributes:
        power: Negatives follow a node's expected visits ** power.
        order: Terms of the Chebyshev expansion; 1: no propagation.
        mu, theta: Centre and sharpness of the band, ``exp(-theta ((lambda - mu)^2 / 2 - 1))`` of an eigenvalue lambda.
    """

    search: ClassVar[Space] = {
        "mu": Span(0.0, 1.0),
        "theta": Span(0.1, 2.0),
        "order": one_of(2, 5, 10, 15),
        "power": one_of(0.0, 0.5, 0.75, 1.0),
    }

    name: Literal["prone"] = "prone"
    power: Number = Field(default=0.75, ge=0, le=10, description="negatives follow expected visits ** power")
    order: Count = Field(default=10, ge=1, le=1_000, description="terms of the propagation; 1: none")
    mu: Number = Field(default=0.2, ge=0, le=2, description="centre of the band of the spectrum")
    theta: Number = Field(default=0.5, gt=0, le=100, description="its sharpness")


SPECTRAL_MODELS: dict[str, type[SpectralConfig]] = {"netmf": NetMFConfig, "prone": ProNEConfig}

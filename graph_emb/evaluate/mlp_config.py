"""Settings of OGB's network on frozen rows; apart from the network, so that a configuration is read without torch."""

from __future__ import annotations

from pydantic import Field, model_validator

from graph_emb.core.settings import Count, Number, Settings


class MLPConfig(Settings):
    """The recipe; the defaults are OGB's for ogbn-arxiv.

    Attributes:
        hidden_dim: H.
        num_layers: Linear layers, at least 2; each but the last is followed by batch norm, ReLU and dropout.
        batch_norm: False leaves the batch norms out, as OGB does for its other node data sets.
        dropout: At least 0 and below 1.
        lr: Adam's learning rate.
        epochs: Passes over the training nodes.
        batch_size: Nodes of a step, at least 2; None: all of them. A last batch of one node is left out of its epoch,
            since one row has no variance.
        eval_every: Epochs between evaluations.
    """

    hidden_dim: Count = Field(default=256, ge=1)
    num_layers: Count = Field(default=3, ge=2)
    batch_norm: bool = True
    dropout: Number = Field(default=0.5, ge=0, lt=1)
    lr: Number = Field(default=0.01, gt=0)
    epochs: Count = Field(default=500, ge=1)
    batch_size: Count | None = Field(default=None, ge=2)
    eval_every: Count = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _something_is_judged(self) -> MLPConfig:
        if self.epochs < self.eval_every:
            raise ValueError(f"epochs={self.epochs} ends before the first evaluation, eval_every={self.eval_every}")
        return self

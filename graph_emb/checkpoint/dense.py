"""Models, torch optimizers, schedulers and random generators as JSON and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from graph_emb.checkpoint.manifest import CheckpointManifest
from graph_emb.core.errors import ConfigError
from graph_emb.core.json_codec import decode, encode
from graph_emb.optimizer import SparseOptimizer

MODEL = "model"


@dataclass(frozen=True)
class DenseObjects:
    """The caller's objects, other than tables, that a checkpoint holds or restores."""

    model: nn.Module | None
    torch_optimizers: Sequence[optim.Optimizer]
    schedulers: Sequence[Any]
    generators: Mapping[str, Any]

    def encoded(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Entries of the manifest, and the tensors that they name.

        Raises:
            ConfigError: a state dict holds what cannot be written without pickle, or an optimizer is of tables.
        """
        for k, one in enumerate(self.torch_optimizers):
            if isinstance(one, SparseOptimizer):
                raise ConfigError(f"torch_optimizers[{k}] is a {type(one).__name__} of tables; pass it in optimizers")
        tensors: dict[str, Tensor] = {}
        model = None if self.model is None else encode(_bare(self.model).state_dict(), MODEL, tensors)
        entries: dict[str, Any] = {MODEL: model}
        for kind in ("torch_optimizers", "schedulers"):
            entries[kind] = [
                {"class": type(one).__name__, "state": encode(one.state_dict(), f"{kind}.{k}", tensors)}
                for k, one in enumerate(getattr(self, kind))
            ]
        return entries, tensors

    def generator_states(self) -> dict[str, Any]:
        """The state of each generator as JSON.

        Raises:
            ConfigError: one is no generator of torch or numpy.
        """
        return {name: encode(_state(name, one), f"generator {name!r}") for name, one in self.generators.items()}

    def restorer(
        self, where: str, manifest: CheckpointManifest, tensors: Mapping[str, Tensor], rank: int, ranks: int
    ) -> Restorer:
        """Everything checked; call what it returns to change the objects. Each rank takes its own generators.

        Raises:
            ConfigError: an object does not fit what was saved.
        """
        steps: list[Callable[[], object]] = []
        if self.model is not None:
            state = decode(manifest.model, tensors)
            _check_model(where, _bare(self.model), state)
            steps.append(partial(_bare(self.model).load_state_dict, state))
        for kind in ("torch_optimizers", "schedulers"):
            for k, one in enumerate(getattr(self, kind)):
                saved = getattr(manifest, kind)[k]
                if saved["class"] != type(one).__name__:
                    raise ConfigError(
                        f"{where}: {kind}[{k}] is a {saved['class']}, the one here a {type(one).__name__}"
                    )
                state = decode(saved["state"], tensors)
                if isinstance(one, optim.Optimizer):
                    _check_groups(where, f"{kind}[{k}]", one, state)
                steps.append(partial(one.load_state_dict, state))
        for name, one in self.generators.items():
            state = decode(_own(where, name, manifest.generators[name], rank, ranks))
            _check_generator(where, name, one, state)
            steps.append(partial(_set_state, one, state))
        return lambda: [step() for step in steps]


Restorer = Callable[[], object]


def _bare(model: nn.Module) -> nn.Module:
    """The model that DistributedDataParallel wraps: its names are the same at any number of ranks."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model  # type: ignore[return-value]


def _check_model(where: str, model: nn.Module, saved: Mapping[str, Any]) -> None:
    own = model.state_dict()
    if odd := sorted(set(saved) ^ set(own)):
        side = "the checkpoint" if odd[0] in saved else "the model"
        raise ConfigError(f"{where}: model: {len(odd)} names differ; only {side} has {odd[0]!r}")
    for name, value in own.items():
        shapes = [tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in (saved[name], value)]
        if shapes[0] != shapes[1]:
            raise ConfigError(f"{where}: model {name!r} has shape {shapes[0]}, the one here {shapes[1]}")


def _check_groups(where: str, what: str, optimizer: optim.Optimizer, saved: Mapping[str, Any]) -> None:
    found = [len(group["params"]) for group in saved["param_groups"]]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if found != own:
        raise ConfigError(f"{where}: {what} has groups of {found} parameters, the one here {own}")


def _own(where: str, name: str, states: list[Any], rank: int, ranks: int) -> Any:
    if len(states) == 1:
        return states[0]
    if len(states) != ranks:
        raise ConfigError(
            f"{where}: generator {name!r} has a state for each of {len(states)} ranks, this job has {ranks}; "
            "seed it anew and leave it out of generators, with only=[...] naming the tables"
        )
    return states[rank]


def _state(name: str, generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return {"bit_generator": f"torch {generator.device.type}", "state": generator.get_state()}
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    raise ConfigError(
        f"generator {name!r} is a {type(generator).__name__}; pass a torch.Generator or a numpy.random.Generator"
    )


def _check_generator(where: str, name: str, generator: Any, saved: Mapping[str, Any]) -> None:
    own = _state(name, generator)["bit_generator"]
    if saved["bit_generator"] != own:
        raise ConfigError(f"{where}: generator {name!r} is a {saved['bit_generator']}, the one here a {own}")


def _set_state(generator: Any, state: Mapping[str, Any]) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state["state"])
    else:
        generator.bit_generator.state = state

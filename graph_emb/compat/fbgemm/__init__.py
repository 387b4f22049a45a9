"""FBGEMM's table-batched embedding, ``SplitTableBatchedEmbeddingBagsCodegen``, on our tables, bags and rules.

A program changes the import. What is accepted is honoured, which FBGEMM's CPU kernels do not say of every argument;
what makes no sense here raises a ConfigError that names it.

Legend: T tables, F features, B bags of a feature, N ids, D width, W ranks of a variable batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.compat.fbgemm.caching import CacheCalls, Caching, state_rows_of
from graph_emb.compat.fbgemm.options import (
    RULES,
    STATE,
    BoundsCheckMode,
    CacheAlgorithm,
    ComputeDevice,
    EmbeddingLocation,
    EmbOptimType,
    GlobalWeightDecayDefinition,
    OptimType,
    PoolingMode,
    SparseType,
    UserEnabledConfigDefinition,
    WeightDecayMode,
    check_call,
    check_others,
    decay,
    device_of,
    devices_of,
    dtype_of,
    member,
    numbers_of,
    outside,
    state_dtype_of,
    state_of,
)
from graph_emb.composed import lookup
from graph_emb.core.errors import ConfigError, ModeError, ShapeError
from graph_emb.embedding import DistEmbedding
from graph_emb.table.initializers import Uniform, fill_rows_
from graph_emb.table.placement import DeviceCache
from graph_emb.table.shard import WEIGHT
from graph_emb.table.spec import accumulation_dtype
from graph_emb.table.tier.shard import TieredShard
from graph_emb.transport import runtime

__all__ = [
    "BoundsCheckMode",
    "CacheAlgorithm",
    "ComputeDevice",
    "EmbOptimType",
    "EmbeddingLocation",
    "GlobalWeightDecayDefinition",
    "OptimType",
    "PoolingMode",
    "SparseType",
    "SplitTableBatchedEmbeddingBagsCodegen",
    "UserEnabledConfigDefinition",
    "WeightDecayMode",
]

_log = logging.getLogger("graph_emb.compat.fbgemm")


class _FusedUpdate(torch.autograd.Function):
    """Pooled rows whose backward updates the tables, once each time."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weights: Tensor | None,
        pooled: Callable[[Tensor | None], Tensor],
        update: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        ctx.weights = None if weights is None else weights.detach().requires_grad_(weights.requires_grad)
        ctx.update = update
        with torch.enable_grad():
            ctx.inner = pooled(ctx.weights)
        return ctx.inner.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.weights is not None:
            ctx.weights.grad = None
        ctx.update(ctx.inner, grad)
        return None, None if ctx.weights is None else ctx.weights.grad, None, None


class SplitTableBatchedEmbeddingBagsCodegen(CacheCalls, torch.nn.Module):
    """Many tables behind one call, updated by the backward pass: FBGEMM's module, for CPU tables of any width.

    ``forward`` looks bags up, ``backward`` merges the gradients of all features of a table and applies them at once;
    no optimizer is called. In collective mode every rank makes the calls, and the backward passes, in the same order.

    What differs from FBGEMM, on purpose: the step counts backward passes, not forward passes (evaluation leaves it
    alone); ids outside a table raise, or under ``WARNING`` (the default) and ``IGNORE`` give rows of zeros and no
    gradient, where FBGEMM trains row 0 and writes the caller's ids; weights of ids are honoured with every pooling and
    their gradients are right; weight decay, ``max_norm`` and stochastic rounding hold for every optimizer; norms of 0
    in LAMB and LARS are guarded. ``state_dict`` holds this process's rows and state; ``graph_emb.save_checkpoint`` of
    ``tables`` and ``sparse_optimizer`` fits other numbers of processes.

    Args:
        embedding_specs: (rows, width, location, compute device) of each table. HOST of CPU and DEVICE of CUDA lie in
            memory of the device, MANAGED in memory of the host, MANAGED_CACHING there with a cache on the device
            (``graph_emb.DeviceCache``); on the CPU both are memory of the host. No test has run CUDA.
        feature_table_map: The table of each feature, (F,); None: each its own.
        weights_precision: FP32, FP16 or BF16.
        output_dtype: The same.
        optimizer: EXACT_SGD, EXACT_ADAGRAD, EXACT_ROWWISE_ADAGRAD, ADAM, PARTIAL_ROWWISE_ADAM, LAMB,
            PARTIAL_ROWWISE_LAMB or LARS_SGD.
        stochastic_rounding: Of 16-bit tables; others have nothing to round.
        gradient_clipping, max_gradient: Clamp each number of the gradient that comes in, before it is merged.
        max_norm: Of touched rows; 0: any.
        learning_rate, eps, momentum, eta, beta1, beta2: Of the optimizer; a number that it does not use is refused.
        weight_decay, weight_decay_mode: NONE decouples the decay in Adam's and LAMB's kinds, is LARS's own, and
            elsewhere refuses a decay; L2, DECOUPLE and DECOUPLE_GLOBAL hold for every optimizer. The last one decays
            all rows in every step, those too that none has touched yet.
        pooling_mode: SUM, MEAN (divides by the number of ids, whatever their weights) or NONE.
        device: Of the tables, as ``embedding_specs`` say it.
        bounds_check_mode: FATAL and NONE raise, WARNING and IGNORE drop.
        table_names: Unique among all live tables.
        global_weight_decay: A ``GlobalWeightDecayDefinition``, of DECOUPLE_GLOBAL.
        optimizer_state_dtypes: FP32 or BF16 for ``momentum1``, and for ``momentum2`` of Adam's and LAMB's kinds.
        extra_optimizer_config: Adam's clock.
        others: ``eps`` and the other numbers above, and those of ``caching.Caching`` for tables that are
            MANAGED_CACHING.
    Attributes:
        tables: The ``DistEmbedding`` of each table, (T,).
        sparse_optimizer: Their optimizer.
        iter: The backward passes of this process so far, (1,), int64.
    Raises:
        ConfigError: an argument that has no meaning here, or a number out of its limits.
    Example:
        >>> from graph_emb.compat.fbgemm import ComputeDevice, EmbeddingLocation, SplitTableBatchedEmbeddingBagsCodegen
        >>> specs = [(4, 2, EmbeddingLocation.HOST, ComputeDevice.CPU)]
        >>> tbe = SplitTableBatchedEmbeddingBagsCodegen(specs, learning_rate=1.0)
        >>> out = tbe(torch.tensor([1, 3, 3]), torch.tensor([0, 2, 3]))  # two bags
        >>> out.sum().backward()
        >>> tbe.split_embedding_weights()[0].tolist()
        [[0.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [-2.0, -2.0]]
    """

    def __init__(
        self,
        embedding_specs: Sequence[tuple[int, int, Any, Any]],
        feature_table_map: Sequence[int] | None = None,
        *,
        weights_precision: Any = SparseType.FP32,
        output_dtype: Any = SparseType.FP32,
        optimizer: Any = OptimType.EXACT_SGD,
        stochastic_rounding: bool = True,
        gradient_clipping: bool = False,
        max_gradient: float = 1.0,
        max_norm: float = 0.0,
        learning_rate: float = 0.01,
        weight_decay: float = 0.0,
        weight_decay_mode: Any = WeightDecayMode.NONE,
        pooling_mode: Any = PoolingMode.SUM,
        device: torch.device | str | int | None = None,
        bounds_check_mode: Any = BoundsCheckMode.WARNING,
        table_names: Sequence[str] | None = None,
        global_weight_decay: Any = None,
        optimizer_state_dtypes: Mapping[str, Any] | None = None,
        extra_optimizer_config: Any = None,
        embedding_table_index_type: torch.dtype = torch.int64,
        embedding_table_offset_type: torch.dtype = torch.int64,
        **others: Any,
    ) -> None:
        super().__init__()
        self.embedding_specs = list(embedding_specs)
        for spec in self.embedding_specs:
            if not isinstance(spec, Sequence) or len(spec) != 4:
                raise ConfigError(f"embedding_specs holds {spec!r}; give (rows, width, location, compute device)")
        self._caching = Caching.taken_from(others, self.embedding_specs)
        check_others(others)
        if {embedding_table_index_type, embedding_table_offset_type} - {torch.int32, torch.int64}:
            raise ConfigError("embedding_table_index_type and embedding_table_offset_type must be torch.int32 or int64")
        self.optimizer = member(OptimType, optimizer, "optimizer", *RULES)
        self.pooling_mode = member(PoolingMode, pooling_mode, "pooling_mode", *PoolingMode)
        self._output, stored = dtype_of(output_dtype, "output_dtype"), dtype_of(weights_precision, "weights_precision")
        self._device = device_of(self.embedding_specs, device)
        self.feature_table_map = list(
            range(len(self.embedding_specs)) if feature_table_map is None else feature_table_map
        )
        if set(self.feature_table_map) != set(range(len(self.embedding_specs))):
            raise ConfigError(
                f"feature_table_map={self.feature_table_map}: each of {len(self.embedding_specs)} tables has to have a "
                "feature, and there is no other table"
            )
        widths = {spec[1] for spec in self.embedding_specs}
        if self.pooling_mode == PoolingMode.NONE and len(widths) > 1:
            raise ConfigError(
                f"pooling_mode=NONE lays rows of all tables together; their widths differ: {sorted(widths)}"
            )
        if not gradient_clipping and max_gradient != 1.0:
            raise ConfigError(f"max_gradient={max_gradient!r} has no effect without gradient_clipping=True")
        if gradient_clipping and not (isinstance(max_gradient, int | float) and max_gradient > 0):
            raise ConfigError(f"max_gradient={max_gradient!r} must be above 0")
        self._max_gradient = float(max_gradient) if gradient_clipping else None
        bounds = outside(bounds_check_mode)
        self._warns = bounds == "drop" and bounds_check_mode.name == "WARNING"
        names: list[Any] = [None] * len(self.embedding_specs) if table_names is None else list(table_names)
        if len(names) != len(self.embedding_specs):
            raise ConfigError(f"table_names has {len(names)} names for {len(self.embedding_specs)} tables")
        options = decay(self.optimizer, weight_decay, weight_decay_mode, global_weight_decay)
        if stochastic_rounding and stored != torch.float32:
            options["stochastic_rounding"] = True
        if max_norm:
            options["max_norm"] = max_norm
        options |= state_dtype_of(self.optimizer, optimizer_state_dtypes)
        options |= numbers_of(self.optimizer, others, extra_optimizer_config)
        placements = self._caching.placements(self.embedding_specs, stored, state_of(self.optimizer, options))
        if any(isinstance(one, DeviceCache) for one in placements) and runtime.current().mode == "kvstore":
            raise ModeError(
                "MANAGED_CACHING: in kvstore mode servers have the rows and their caches, which this module's calls "
                "read, fill and count in their place; take HOST, or ge.DistEmbedding(placement=ge.DeviceCache(...))"
            )
        self.tables = [
            DistEmbedding(rows, width, name, dtype=stored, device=device, bounds=bounds, placement=placement)
            for (rows, width, *_), name, placement, device in zip(
                self.embedding_specs, names, placements, devices_of(self.embedding_specs, self._device), strict=True
            )
        ]
        self._begin_counts()
        rule = RULES[self.optimizer][0]
        self._row_clock = options.get("bias_correction") == "row"
        self.sparse_optimizer = rule(self.tables, lr=learning_rate, compat="fbgemm", **options)  # type: ignore[call-arg]
        self._anchor = torch.zeros((), requires_grad=True)
        self.iter: Tensor
        self.register_buffer("iter", torch.zeros(1, dtype=torch.int64))

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
        total_unique_indices: int | None = None,
        **others: Any,
    ) -> Tensor:
        """Pooled rows of the bags of every feature; where gradients are enabled, their backward updates the tables.

        Args:
            indices: The ids of all bags, feature after feature, (N,), int64 or int32; -1 is outside.
            offsets: Where each bag begins, and N at the end: (F * B + 1,).
            per_sample_weights: A factor of each id, (N,); gradients reach it.
            feature_requires_grad: (F,), 0 where gradients shall not reach a feature's weights; tables train as ever.
            batch_size_per_feature_per_rank: Bags of each feature and rank, (F, W), where features have unequal numbers.
            total_unique_indices: Refused: it belongs to OptimType.NONE.
            others: Refused: ``hash_zch_identities``, ``hash_zch_runtime_meta``, ``vbe_output``, ``vbe_output_offsets``.
        Returns:
            (B, widths of all features), with NONE (N, D); of a variable batch one dimension: rank after rank, feature
            after feature, bag after bag.
        Raises:
            ShapeError: offsets or weights do not fit.
            PartitionError: an id is outside its table, where that raises.
        """
        if total_unique_indices is not None:
            raise ConfigError("total_unique_indices belongs to OptimType.NONE, which is not here; leave it out")
        if feature_requires_grad is not None and per_sample_weights is None:
            raise ConfigError("feature_requires_grad is about the gradient of per_sample_weights; pass those too")
        check_call(others)
        if not isinstance(indices, Tensor) or not isinstance(offsets, Tensor):
            raise ShapeError(f"indices and offsets are tensors, not {type(indices).__name__}, {type(offsets).__name__}")
        if feature_requires_grad is not None and feature_requires_grad.shape != (len(self.feature_table_map),):
            raise ShapeError(
                f"feature_requires_grad of shape {tuple(feature_requires_grad.shape)} for "
                f"{len(self.feature_table_map)} features"
            )
        num_bags = self._num_bags(offsets, batch_size_per_feature_per_rank)
        offsets = offsets.long().cpu()
        lengths = offsets.diff()
        if indices.dim() != 1 or offsets[0] != 0 or offsets[-1] != len(indices) or (lengths < 0).any():
            raise ShapeError(f"offsets must ascend from 0 to {len(indices)}, the number of indices")
        if per_sample_weights is not None and tuple(per_sample_weights.shape) != tuple(indices.shape):
            raise ShapeError(
                f"per_sample_weights of shape {tuple(per_sample_weights.shape)} for indices {tuple(indices.shape)}"
            )
        self._note_cached()
        before = sum(table.dropped for table in self.tables)

        def pooled(weights: Tensor | None) -> Tensor:
            if weights is not None and feature_requires_grad is not None:
                ends = offsets[[0, *accumulate(num_bags)]].diff()
                lets = torch.repeat_interleave(feature_requires_grad.cpu().bool(), ends).to(weights.device)
                weights = torch.where(lets, weights, weights.detach())
            if self.pooling_mode == PoolingMode.NONE:
                return self._rows(indices, offsets, num_bags, weights)
            found = self._bags(indices, offsets, num_bags, weights)
            if batch_size_per_feature_per_rank is None:
                return torch.cat(found, dim=1)
            split = [one.split(list(of)) for one, of in zip(found, batch_size_per_feature_per_rank, strict=True)]
            return torch.cat([piece.flatten() for of_rank in zip(*split, strict=True) for piece in of_rank])

        if torch.is_grad_enabled():
            out = _FusedUpdate.apply(self._anchor, per_sample_weights, pooled, self._update)
        else:
            out = pooled(per_sample_weights)
        self._count_cached(self._ends(offsets, num_bags))
        dropped = sum(table.dropped for table in self.tables) - before
        if dropped and self._warns:
            _log.warning(
                "%d of %d ids are outside their tables: they give zeros and no gradient", dropped, len(indices)
            )
        return out

    def _update(self, out: Tensor, grad: Tensor) -> None:
        """Let the gradient of an output reach its rows, and take the step."""
        if self._max_gradient is not None:
            grad = grad.clamp(-self._max_gradient, self._max_gradient)
        out.backward(grad, retain_graph=True)  # FBGEMM updates as often as backward is called
        self.sparse_optimizer.step()
        self.iter += 1

    def _num_bags(self, offsets: Tensor, of_ranks: Sequence[Sequence[int]] | None) -> list[int]:
        """Bags of each feature, (F,)."""
        features, bags = len(self.feature_table_map), offsets.numel() - 1
        if of_ranks is None:
            if offsets.is_floating_point() or offsets.dim() != 1 or bags < 0 or bags % features:
                raise ShapeError(
                    f"offsets of shape {tuple(offsets.shape)} and {offsets.dtype}: pass integers, (F * B + 1,) for "
                    f"{features} features"
                )
            return [bags // features] * features
        if self.pooling_mode == PoolingMode.NONE:
            raise ConfigError("batch_size_per_feature_per_rank needs pooling_mode SUM or MEAN")
        found = [sum(of) for of in of_ranks]
        below = any(bags_of_rank < 0 for of in of_ranks for bags_of_rank in of)
        if below or len(found) != features or sum(found) != bags or len({len(of) for of in of_ranks}) > 1:
            raise ShapeError(
                f"batch_size_per_feature_per_rank has {sum(found)} bags of {len(found)} features; the offsets have "
                f"{bags}, and there are {features} features, of as many ranks each"
            )
        return found

    def _rows(self, indices: Tensor, offsets: Tensor, num_bags: list[int], weights: Tensor | None) -> Tensor:
        """Rows without pooling, (N, D), all tables in one lookup."""
        ends = offsets[[0, *accumulate(num_bags)]].diff().tolist()
        asked = [
            (self.tables[table], ids) for table, ids in zip(self.feature_table_map, indices.split(ends), strict=True)
        ]
        if weights is None:
            return torch.cat(lookup(asked, self._device, self._output))
        rows = torch.cat(lookup(asked, self._device, accumulation_dtype(self.tables[0].dtype)))
        return (rows * weights.to(rows).unsqueeze(1)).to(self._output)

    def _bags(self, indices: Tensor, offsets: Tensor, num_bags: list[int], weights: Tensor | None) -> list[Tensor]:
        """Pooled rows of each feature, (B, D): the features of a table in one call."""
        mode = "mean" if self.pooling_mode == PoolingMode.MEAN else "sum"
        lengths = offsets.diff()
        if mode == "mean" and weights is not None:  # FBGEMM's mean of weighted rows divides by their number
            mode, weights = "sum", weights / torch.repeat_interleave(lengths, lengths).to(weights)
        bounds = [0, *accumulate(num_bags)]
        found: dict[int, Tensor] = {}
        for number, table in enumerate(self.tables):
            features = [f for f, of in enumerate(self.feature_table_map) if of == number]
            places = [slice(int(offsets[bounds[f]]), int(offsets[bounds[f + 1]])) for f in features]
            sizes = torch.cat([lengths[bounds[f] : bounds[f + 1]] for f in features])
            ids = torch.cat([indices[place] for place in places])
            factors = None if weights is None else torch.cat([weights[place] for place in places])
            pooled = table.bag(ids, sizes.cumsum(0) - sizes, mode, factors, self._device, self._output)
            found.update(zip(features, pooled.split([num_bags[f] for f in features]), strict=True))
        return [found[f] for f in range(len(num_bags))]

    def split_embedding_weights(self) -> list[Tensor]:
        """The rows of each table that this process stores, (rows, D), to be read and filled in place.

        Of a table that is MANAGED_CACHING the rows in memory of the host, which are the newest until the next pass;
        the cache is empty then, so that the next pass meets what was filled in.
        """
        self.flush()
        shards = [table.shard for table in self.tables]
        for shard in shards:
            shard.settle()
        return [shard.lower_column(WEIGHT) if isinstance(shard, TieredShard) else shard.weight for shard in shards]

    def split_optimizer_states(self) -> list[list[Tensor]]:
        """The state of each table in FBGEMM's order, an empty list for each where there is none."""
        return [list(state.values()) for state in self.get_optimizer_state()]

    def get_optimizer_state(self) -> list[dict[str, Tensor]]:
        """The state of each table by FBGEMM's names, of the rows that this process stores.

        ``row_counter``, (rows,), int64, is the clock of ``use_rowwise_bias_correction``; the others' is ``iter``. The
        clocks of stochastic rounding and of DECOUPLE_GLOBAL are in ``state_dict`` alone.
        """
        self.flush()
        states = [state_rows_of(table.shard) for table in self.tables]
        for state in states:
            if self._row_clock:
                state["row_counter"] = state["step"]
        return [{name: state[name] for name in STATE if name in state} for state in states]

    def flush(self) -> None:
        """Return when the updates of this process are applied, and the host has every row of tables with a cache."""
        self.sparse_optimizer.transport.flush()
        for number in self._cached:
            self._shard(number).flush()

    def set_learning_rate(self, lr: float) -> None:
        """As ``SparseOptimizer.set_lr``: of the next backward pass, whenever its forward pass was."""
        self.sparse_optimizer.set_lr(lr)

    def set_optimizer_step(self, step: int) -> None:
        """Let ``iter`` be this, and the clock of an optimizer that has one (``SparseOptimizer.set_step``), at once."""
        if "beta1" in RULES[self.optimizer][1]:
            self.sparse_optimizer.set_step(step)
        self.iter.fill_(step)

    def update_hyper_parameters(self, params_dict: Mapping[str, float]) -> None:
        """Change ``lr``, ``eps``, ``beta1``, ``beta2`` or ``weight_decay``; all are checked before one changes."""
        (group,) = self.sparse_optimizer.param_groups
        fresh = dict(group)
        for name, value in params_dict.items():
            if name in ("beta1", "beta2") and "betas" in group:
                first, second = fresh["betas"]
                fresh["betas"] = (value, second) if name == "beta1" else (first, value)
            elif name in ("lr", "eps", "weight_decay") and name in group:
                fresh[name] = value
            else:
                raise ConfigError(f"update_hyper_parameters: {self.optimizer.name} has no number {name!r} to change")
        self.sparse_optimizer.rule_of(fresh)
        self.sparse_optimizer.set_groups([fresh])

    def init_embedding_weights_uniform(self, min_val: float, max_val: float) -> None:
        """Draw the rows of every table uniformly from [min_val, max_val); the seed comes from torch's generator."""
        for table, weight in zip(self.tables, self.split_embedding_weights(), strict=True):
            seed = int(torch.randint(2**62, ()))
            fill_rows_(Uniform(min_val, max_val, seed), weight, table.shard.first_id, table.spec.original_ids)

    def get_extra_state(self) -> dict[str, Any]:
        """This process's rows and optimizer state, for ``state_dict``."""
        rows = [weight.clone() for weight in self.split_embedding_weights()]
        return {"weights": rows, "optimizer": self.sparse_optimizer.state_dict()}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_extra_state`` returned in a job of the same shape."""
        own = self.split_embedding_weights()
        shapes = [[tuple(weight.shape) for weight in weights] for weights in (state["weights"], own)]
        if shapes[0] != shapes[1]:
            raise ConfigError(f"the saved tables have the shapes {shapes[0]}, those of this process {shapes[1]}")
        self.sparse_optimizer.load_state_dict(state["optimizer"])
        own = self.split_embedding_weights()  # loading filled the caches again
        for weight, saved in zip(own, state["weights"], strict=True):
            weight.copy_(saved)

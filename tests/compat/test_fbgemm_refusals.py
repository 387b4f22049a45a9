"""What FBGEMM's module cannot do here is refused, and the message names it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graph_emb.compat.fbgemm import (
    BoundsCheckMode,
    CacheAlgorithm,
    ComputeDevice,
    EmbeddingLocation,
    GlobalWeightDecayDefinition,
    OptimType,
    PoolingMode,
    SparseType,
    SplitTableBatchedEmbeddingBagsCodegen,
    UserEnabledConfigDefinition,
    WeightDecayMode,
)
from graph_emb.compat.fbgemm.caching import Caching
from graph_emb.compat.fbgemm.options import ABSENT, NUMBERS
from graph_emb.core.errors import ConfigError, ShapeError
from tests.compat.fbgemm_loops import batch, module

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "deprecated": ({"optimizer": OptimType.SGD}, "optimizer=SGD is not offered here; offered: EXACT_SGD"),
    "no optimizer": ({"optimizer": OptimType.NONE}, "optimizer=NONE is not offered"),
    "ensemble": ({"optimizer": OptimType.ENSEMBLE_ROWWISE_ADAGRAD}, "optimizer=ENSEMBLE_ROWWISE_ADAGRAD"),
    "int8": ({"weights_precision": SparseType.INT8}, "weights_precision=INT8 is not offered"),
    "nfp8": ({"output_dtype": SparseType.NFP8}, "output_dtype=NFP8 is not offered"),
    "v2": ({"use_experimental_tbe": True}, "use_experimental_tbe=True"),
    "v2 bounds": ({"bounds_check_mode": BoundsCheckMode.V2_FATAL}, "bounds_check_mode=V2_FATAL"),
    "counter": ({"weight_decay_mode": WeightDecayMode.COUNTER}, "weight_decay_mode=COUNTER"),
    "cowclip": ({"weight_decay_mode": WeightDecayMode.COWCLIP}, "weight_decay_mode=COWCLIP"),
    "bounded global decay": (
        {
            "weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL,
            "global_weight_decay": GlobalWeightDecayDefinition(lower_bound=0.5),
        },
        "needs weight_decay_mode=DECOUPLE_GLOBAL, start_iter 0 and lower_bound 0",
    ),
    "global decay of another mode": (
        {"weight_decay_mode": WeightDecayMode.L2, "global_weight_decay": GlobalWeightDecayDefinition()},
        "needs weight_decay_mode=DECOUPLE_GLOBAL",
    ),
    "mixed state": (
        {"optimizer": OptimType.ADAM, "optimizer_state_dtypes": {"momentum2": SparseType.BF16}},
        "ADAM takes one precision for momentum1, momentum2",
    ),
    "half state": (
        {"optimizer": OptimType.ADAM, "optimizer_state_dtypes": {"momentum1": SparseType.FP16}},
        "optimizer_state_dtypes of momentum1=FP16 is not offered",
    ),
    "state of SGD": ({"optimizer_state_dtypes": {"momentum1": SparseType.BF16}}, "has no effect"),
    "cache": ({"cache_load_factor": 0.5}, "cache_load_factor=0.5 has no effect: no table is MANAGED_CACHING"),
    "lfu": ({"cache_algorithm": CacheAlgorithm.LFU}, "cache_algorithm="),
    "prefetch": ({"prefetch_pipeline": True}, "prefetch_pipeline=True"),
    "hbm": ({"enforce_hbm": True}, "enforce_hbm=True"),
    "unknown": ({"learning_rat": 0.5}, "unknown argument 'learning_rat'"),
    "decay without a mode": ({"weight_decay": 0.1}, "weight_decay=0.1 has no effect on EXACT_SGD"),
    "eps of SGD": ({"eps": 0.1}, "eps=0.1 has no effect on EXACT_SGD"),
    "momentum of Adam": ({"optimizer": OptimType.ADAM, "momentum": 0.5}, "momentum=0.5 has no effect on ADAM"),
    "clock of SGD": (
        {"extra_optimizer_config": UserEnabledConfigDefinition(True)},
        "use_rowwise_bias_correction has no effect on EXACT_SGD",
    ),
    "writeback": (
        {"extra_optimizer_config": UserEnabledConfigDefinition(use_writeback_bwd_prehook=True)},
        "use_writeback_bwd_prehook=True",
    ),
    "streaming": ({"enable_raw_embedding_streaming": True}, "enable_raw_embedding_streaming=True"),
    "clipping switched off": ({"max_gradient": 0.5}, "max_gradient=0.5 has no effect without gradient_clipping"),
    "clipping to nothing": ({"gradient_clipping": True, "max_gradient": 0.0}, "max_gradient=0.0 must be above 0"),
    "norm": ({"max_norm": -1.0}, "max_norm=-1.0 must be above 0"),
    "a table without a feature": ({"feature_table_map": [0, 0, 1]}, "each of 3 tables has to have a feature"),
    "widths": ({"pooling_mode": PoolingMode.NONE, "widths": (4, 4, 3)}, "their widths differ"),
    "names": ({"table_names": ["a", "b"]}, "table_names has 2 names for 3 tables"),
    "device": ({"device": "cuda"}, "device='cuda', but embedding_specs say cpu"),
    "index type": ({"embedding_table_index_type": torch.float32}, "embedding_table_index_type"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_here_is_refused_by_name(what: str) -> None:
    options, message = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        module(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("location", "device"), [("MTIA", "CPU"), ("MTIA", "CUDA"), ("HOST", "CUDA"), ("DEVICE", "CPU")]
)
def test_places_that_are_not_here_are_refused_by_name(location: str, device: str) -> None:
    with pytest.raises(ConfigError, match=location):
        SplitTableBatchedEmbeddingBagsCodegen([(4, 2, EmbeddingLocation[location], ComputeDevice[device])])


def test_memory_of_a_device_is_asked_of_a_machine_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"placement='device': torch finds no GPU here"):
        SplitTableBatchedEmbeddingBagsCodegen([(4, 2, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)])
    managed = SplitTableBatchedEmbeddingBagsCodegen([(4, 2, EmbeddingLocation.MANAGED, ComputeDevice.CUDA)])
    assert managed.tables[0].shard.weight.device.type == "cpu"


def test_bad_calls_are_refused() -> None:
    tbe = module()
    ids, offsets, factors = batch(5)
    none = module(pooling_mode=PoolingMode.NONE)
    calls: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ShapeError, "for 4 features", lambda: tbe(ids, offsets[:-1])),
        (ShapeError, "offsets must ascend", lambda: tbe(ids[:-1], offsets)),
        (ShapeError, "offsets must ascend", lambda: tbe(ids, offsets.flip(0))),
        (ShapeError, "per_sample_weights of shape", lambda: tbe(ids, offsets, factors[:-1])),
        (ConfigError, "feature_requires_grad", lambda: tbe(ids, offsets, feature_requires_grad=torch.ones(4))),
        (ConfigError, "total_unique_indices", lambda: tbe(ids, offsets, total_unique_indices=3)),
        (ConfigError, "hash_zch_identities", lambda: tbe(ids, offsets, hash_zch_identities=ids)),
        (ConfigError, "unknown argument 'weights'", lambda: tbe(ids, offsets, weights=factors)),
        (ShapeError, "bags of 3 features", lambda: tbe(ids, offsets, None, None, [[4], [4], [4]])),
        (ConfigError, "needs pooling_mode", lambda: none(ids, offsets, None, None, [[3]] * 4)),
    ]
    for kind, message, call in calls:
        with pytest.raises(kind, match=message):
            call()


def test_every_argument_and_member_of_fbgemm_is_known_by_name() -> None:
    """As FBGEMM 1.8.0 has them: a program that names one gets it, or is told that it is not offered."""
    theirs = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    enums = (BoundsCheckMode, CacheAlgorithm, ComputeDevice, EmbeddingLocation, OptimType, PoolingMode, SparseType)
    for kind in (*enums, WeightDecayMode):
        wanted = getattr(theirs, kind.__name__).__members__
        assert {name: one.value for name, one in kind.__members__.items()} == {
            name: one.value for name, one in wanted.items()
        }
    for precision in (SparseType.FP32, SparseType.FP16, SparseType.BF16):
        assert precision.as_dtype() == theirs.SparseType[precision.name].as_dtype()
    for kind in (GlobalWeightDecayDefinition, UserEnabledConfigDefinition):
        assert dataclasses.asdict(kind()) == dataclasses.asdict(getattr(theirs, kind.__name__)())
    names = inspect.signature(theirs.SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters
    own = inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters
    assert set(names) - set(own) == {*ABSENT, *NUMBERS, *(field.name for field in dataclasses.fields(Caching))}
    tbe, (ids, offsets, _) = module(), batch(5)
    for name in inspect.signature(theirs.SplitTableBatchedEmbeddingBagsCodegen.forward).parameters:
        if name not in inspect.signature(tbe.forward).parameters and name != "self":
            assert tbe(ids, offsets, **{name: None}).shape
            with pytest.raises(ConfigError, match=f"^{name}: there is no such thing"):
                tbe(ids, offsets, **{name: ids})


def test_what_ended_with_a_traceback_is_refused_by_name() -> None:
    tbe = module()
    features = len(tbe.feature_table_map)
    offsets, indices = torch.zeros(features + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ShapeError, match="indices and offsets are tensors, not list, Tensor"):
        tbe([], offsets)  # type: ignore[arg-type]
    with pytest.raises(
        ShapeError, match=rf"feature_requires_grad of shape \({features + 1},\) for {features} features"
    ):
        tbe(indices, offsets, torch.zeros(0), feature_requires_grad=torch.ones(features + 1))
    counts = [[-1, 2], *([[1, 0]] * (features - 1))]
    with pytest.raises(ShapeError, match="batch_size_per_feature_per_rank has"):
        tbe(indices, offsets, batch_size_per_feature_per_rank=counts)
    specs: list[Any] = [(4, 2, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    for options, message in (
        ({"embedding_specs": [(4, 2)]}, r"embedding_specs holds \(4, 2\); give \(rows, width, location"),
        ({"gradient_clipping": True, "max_gradient": "1"}, "max_gradient='1' must be above 0"),
        ({"device": 0}, "device=0"),
    ):
        with pytest.raises(ConfigError, match=message):
            SplitTableBatchedEmbeddingBagsCodegen(**{"embedding_specs": specs, **options})

"""State of DGL's distributed sparse optimizers, from the files that their ``save(f)`` wrote, into ours.

DGL (1.1.3, ``dgl/distributed/optim/pytorch/sparse_optim.py``) writes ``f_<rank>`` on every rank with ``torch.save``:
``{"params": {"world_size", "_lr", "_eps", ...}, "emb_states": {embedding: {"ids": (R,), "states": {name: tensor}}}}``.
The ids are those of DGL's partition; names of states end with ``_sum`` (Adagrad), or ``_step``, ``_mem`` and ``_power``
(Adam). Weights are not in it: DGL never saves them here.
"""

# N rows of a table, R rows of a file, D width.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, PartitionError, check_flags
from graph_emb.core.tensor_files import load_torch
from graph_emb.embedding import DistEmbedding
from graph_emb.optimizer import SparseOptimizer

ENDINGS = {"_sum": "sum", "_mem": "exp_avg", "_power": "exp_avg_sq", "_step": "step"}
"""How DGL's names of states end, and our names."""
NUMBERS = {"_lr": "lr", "_eps": "eps", "_beta1": "beta1", "_beta2": "beta2"}
PIECE_ROWS = 1 << 16


@dataclass(frozen=True)
class DGLState:
    """The outcome of an import.

    Attributes:
        world_size: Ranks that wrote, one file each.
        rows: Rows of state that this rank stores, by table.
        numbers: The optimizer's numbers as the files have them; they are set in every parameter group.
    """

    world_size: int
    rows: dict[str, int]
    numbers: dict[str, Any]


def import_dgl_state(
    f: str | Path,
    optimizer: SparseOptimizer,
    *,
    id_maps: Mapping[str, ArrayLike] | None = None,
    tables: Mapping[str, str] | None = None,
    stored_root: bool = False,
) -> DGLState:
    """Load what a DGL 1.x distributed optimizer's ``save(f)`` wrote: state, learning rate and other numbers.

    Every rank calls it and reads its own rows from all files, which are memory-mapped and unpickled without code.
    Everything is checked before the first row changes. ``compat="dgl-1.x"`` makes our optimizer go on as DGL's would.

    Args:
        f: The name that was given to DGL; its files are ``f_0``, ``f_1``, ...
        optimizer: ``SparseAdagrad`` for DGL's Adagrad, ``SparseAdam`` with ``bias_correction="row"`` for its Adam.
        id_maps: By our table's name, the original id of each id of DGL's partition, (N,) distinct integers: the
            ``orig_id`` that DGL wrote, or ``partition.load(folder).node_map()``. A table that is not named has the ids
            of DGL's partition itself.
        tables: DGL's names of the embeddings by our tables' names, where they differ.
        stored_root: Adagrad of DGL 0.8.2 to 2.1 on the CPU stores ``sqrt(G) + eps`` where it means G, the sum of
            squares (``grad_state.sqrt_().add_(eps)`` before the write); what it should have been is lost. True takes
            ``(stored - eps) ** 2`` for G, with which the size of the steps goes on where DGL's was; False takes what
            is stored, as is right after training on a GPU.
    Raises:
        DataError: a file is missing, damaged or no such file, lacks rows, or has one twice.
        ConfigError: the files are of another optimizer, or of other tables or widths; stored_root without Adagrad.
        PartitionError: an id is outside the map, or the table does not have it.
    """
    check_flags(stored_root=stored_root)
    spelled = {name: (tables or {}).get(name, name) for name in optimizer.tables}
    for given, what in ((id_maps, "id_maps"), (tables, "tables")):
        stray = sorted(set(given or {}) - set(spelled))
        if stray:
            raise ConfigError(f"{what} names table {stray[0]!r}; the optimizer trains {', '.join(map(repr, spelled))}")
    files = _read_all(Path(f))
    plans = {}
    for name, table in optimizer.tables.items():
        to_original = None if id_maps is None or name not in id_maps else np.asarray(id_maps[name])
        plans[name] = [_checked(path, content, spelled[name], table, to_original) for path, content in files.items()]
        ids = np.concatenate([part.ids.numpy() for part in plans[name]])
        times = np.bincount(ids, minlength=table.num_embeddings)
        if (times != 1).any():
            row = int(np.argmax(times != 1))
            what = "twice" if times[row] else f"not at all, nor {int((times == 0).sum()) - 1} others"
            raise DataError(f"{f}_*: row {row} of table {name!r} is there {what}; were all ranks of one job saved?")
    first_path, first = next(iter(files.items()))
    numbers = {ours: first["params"][theirs] for theirs, ours in NUMBERS.items() if theirs in first["params"]}
    groups = [_with_numbers(optimizer, group, numbers, first_path) for group in optimizer.param_groups]
    if stored_root and any("sum" not in table.shard.state_specs for table in optimizer.tables.values()):
        raise ConfigError(f"stored_root=True is for DGL's Adagrad; {type(optimizer).__name__} keeps no sum of squares")
    root_eps = float(numbers.get("eps", 0.0)) if stored_root else None
    transport = next(iter(optimizer.tables.values())).transport
    transport.flush()
    transport.barrier()  # a late push of another rank must not land on what is written here
    for group, fresh in zip(optimizer.param_groups, groups, strict=True):
        group.update(fresh)
    rows = {
        name: sum(_write(table, part, root_eps) for part in plans[name]) for name, table in optimizer.tables.items()
    }
    transport.barrier()
    return DGLState(len(files), rows, numbers)


@dataclass(frozen=True)
class _Part:
    """One file's rows of one table: the table's id of each row, (R,), and the tensors by our names of states."""

    ids: Tensor
    state: dict[str, Tensor]


def _read_all(f: Path) -> dict[Path, dict[str, Any]]:
    """The content of ``f_0`` and of as many more files as it says that ranks wrote."""
    files: dict[Path, dict[str, Any]] = {}
    count = 1
    while len(files) < count:
        path = f.with_name(f"{f.name}_{len(files)}")
        if not path.is_file():
            more = f"; {count} ranks saved, their files must all be here" if files else ""
            raise DataError(f"no optimizer state of DGL at {path}{more}")
        content = _read(path)
        size = content["params"]["world_size"]
        if files and size != count:
            raise DataError(
                f"{path} was written by {size} ranks, {next(iter(files))} by {count}; they are of two saves"
            )
        count = size
        files[path] = content
    return files


def _read(path: Path) -> dict[str, Any]:
    content = load_torch(path)
    known = isinstance(content, dict) and all(isinstance(content.get(key), dict) for key in ("params", "emb_states"))
    if not known or not isinstance(content["params"].get("world_size"), int):
        raise DataError(f"{path} is no optimizer state of DGL: it lacks params, emb_states or world_size")
    return content


def _checked(
    path: Path, content: dict[str, Any], theirs: str, table: DistEmbedding, to_original: np.ndarray | None
) -> _Part:
    """One file's rows of a table, known to fit it."""
    found = content["emb_states"]
    if theirs not in found:
        raise ConfigError(
            f"{path} holds state of {', '.join(map(repr, found)) or 'no embedding'}, not of {theirs!r}; "
            f"tables={{{table.name!r}: <name in DGL>}} says which"
        )
    ids, states = found[theirs].get("ids"), found[theirs].get("states")
    if not isinstance(ids, Tensor) or not isinstance(states, dict):
        raise DataError(f"{path}: {theirs!r} lacks ids or states; it is no optimizer state of DGL 1.x")
    named: dict[str, Tensor] = {
        ENDINGS.get("_" + str(name).rpartition("_")[2], str(name)): tensor for name, tensor in states.items()
    }
    own = table.shard.state_specs
    if set(named) != set(own):
        raise ConfigError(
            f"{path}: {theirs!r} has the states {', '.join(states)}, "
            f"table {table.name!r} keeps {', '.join(own) or 'none'}; SparseAdagrad takes Adagrad's, SparseAdam Adam's"
        )
    for name, tensor in named.items():
        if own[name].kind == "table":
            raise ConfigError(f"table {table.name!r}: DGL counts {name} by row; make it with bias_correction='row'")
        shape = (len(ids), table.embedding_dim) if own[name].kind == "element" else (len(ids),)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{path}: {theirs!r} {name} has shape {tuple(tensor.shape)}, table {table.name!r} {shape}"
            )
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {theirs!r} {name} holds NaN or infinities")
    return _Part(_own_ids(path, ids.long(), table, to_original), named)


def _own_ids(path: Path, ids: Tensor, table: DistEmbedding, to_original: np.ndarray | None) -> Tensor:
    """The table's ids of DGL's ids."""
    size = table.num_embeddings if to_original is None else len(to_original)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise PartitionError(f"{path}: id {bad} is outside [0, {size}); is it of table {table.name!r}?")
    if to_original is None:
        return ids
    original = to_original[ids.numpy()].astype(np.int64)
    found = table.original_ids.find(original)
    if (found < 0).any():
        raise PartitionError(
            f"{path}: table {table.name!r} does not have original id {original[np.argmax(found < 0)]}; is the map of "
            "this graph?"
        )
    return torch.from_numpy(found)


def _with_numbers(
    optimizer: SparseOptimizer, group: dict[str, Any], numbers: dict[str, Any], path: Path
) -> dict[str, Any]:
    """The numbers of the files as the group spells them, known to be within the rule's limits."""
    fresh = {name: value for name, value in numbers.items() if name in group}
    if "betas" in group and "beta1" in numbers:
        fresh["betas"] = (numbers["beta1"], numbers["beta2"])
    try:
        optimizer.rule_of({**group, **fresh})
    except ConfigError as error:
        raise DataError(f"{path}: {error}") from None
    return fresh


def _write(table: DistEmbedding, part: _Part, root_eps: float | None) -> int:
    """Copy the rows that this process loads into their state; how many they are."""
    written = 0
    for share in table.transport.rows(table.name, overwrite=True):
        rows = part.ids - share.first_id
        mine = ((rows >= 0) & (rows < share.num_rows)).nonzero().flatten()
        for taken in mine.split(PIECE_ROWS):
            for name, tensor in part.state.items():
                values = tensor[taken]
                if name == "sum" and root_eps is not None:
                    values = (values - root_eps).clamp(min=0).square()
                share.write(name, rows[taken], values.to(table.optm_state[name].dtype))
        written += len(mine)
    return written

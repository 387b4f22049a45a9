"""Rows of new nodes: a run that goes on after its graph has grown, and rows of unseen nodes beside rows that stay.

Legend: N nodes, U unseen ones, D width.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from graph_emb.config import TrainSection, config_from, read_config_file
from graph_emb.core.errors import ConfigError, LackingError, check_flags
from graph_emb.core.paths import user_path
from graph_emb.core.progress import bar
from graph_emb.core.threads import torch_threads
from graph_emb.formats.embedding_files import Embeddings, save_embeddings
from graph_emb.graph.grown import Ends
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import plain_dataset
from graph_emb.models.shared_rows import OF_SHARED_ROWS, TableKind
from graph_emb.models.skipgram.config import PlainWalkConfig
from graph_emb.models.skipgram.rates import GOING_ON_SHARE
from graph_emb.models.skipgram.steps import MOST_CHANGE, Kernel, WalkRates, in_parts, rate_of_sampler
from graph_emb.models.skipgram.training import TOKENS_PER_BATCH
from graph_emb.run.continuing import GrownStart, OldRun, cut_walks, start_of
from graph_emb.run.inputs import edge_policy, grown_dataset, read_dataset
from graph_emb.run.pipeline import PipelineResult, config_of
from graph_emb.run.pipeline import run as run_pipeline
from graph_emb.run.run_folder import CONFIG, is_run
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.walk_kernels import thread_count
from graph_emb.sampling.walks import WalkSampler

HANDED_ON = ("seed", "dataset", "model", "train", "evaluate", "output")
"""Sections of a run with which it goes on; how many processes train, and when they save, is said anew."""


def continue_run(
    run: str | Path,
    new_edges: str | Path | Sequence[str | Path] | None = (),
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    **overrides: Any,
) -> PipelineResult:
    """Go on with a run of walks on a graph that has grown; ``graph-emb train --from RUN --new-edges FILE`` in Python.

    New nodes begin with their neighbours' mean as old nodes lead it, see ``graph_emb.run.fitted_means``. Walks begin,
    or edges are drawn, where the graph has changed alone, see ``graph_emb.run.continuing``; walks are short.
    All rows that they meet are trained, walks by SGD in place at .3 of the rate of a whole training, else at the rule's
    own rate. After a run of composed rows each node goes on with a row of its own.

    Args:
        run: Folder of a run of deepwalk, node2vec or line; it stays as it is.
        new_edges: Files of edges that came since, by the ids of its graph; ids that it lacks are new nodes. None where
            ``dataset`` names the grown graph.
        out, overwrite, resume, progress: As of ``graph_emb.pipeline``.
        overrides: What differs from the run, as ``graph_emb.pipeline`` takes it: ``epochs=2``, ``reach=1``,
            ``evaluate=False``, ``dataset=...``.
    Raises:
        ConfigError: no run folder, a setting is wrong, or nothing has changed.
        LackingError: the run is of another model, or its folder lacks what goes on.
        DataError: edges or the run's data set cannot be read.
    """
    check_flags(overwrite=overwrite, resume=resume, progress=progress)
    files = [new_edges] if isinstance(new_edges, str | os.PathLike) else list(new_edges or ())
    given = {name: overrides.pop(name, None) for name in ("model", "dataset", "root", "seed", "evaluate")}
    config = config_of(base_of(run, files), given, overrides)
    return run_pipeline(config, out=out, overwrite=overwrite, resume=resume, progress=progress)


def base_of(run: str | Path, new_edges: Sequence[str | Path] = ()) -> dict[str, Any]:
    """The sections with which a run goes on.

    The rate of SGD in place follows the walks, so that it is chosen anew; these are cut, see ``cut_walks``.
    What was trained from files goes on in memory, which first rows of new nodes need.

    Raises:
        ConfigError: no run folder.
    """
    place = user_path(run)
    if not is_run(place):
        raise ConfigError(f"{place} is no run folder: it has no {CONFIG} or no metrics.json; give the --out of a run")
    config = config_from(read_config_file(place / CONFIG))
    sections = {name: section for name, section in config.sections().items() if name in HANDED_ON}
    edges = [*sections["dataset"]["new_edges"], *(str(user_path(path).absolute()) for path in new_edges)]
    sections["dataset"]["new_edges"] = edges
    unset = {"warm_start": None, "warm_start_partial": False, "multilevel": False, "reach": 0}
    if getattr(config.model, "composed", False):  # its rows are saved, not the tables that they are sums of
        unset |= {name: TableKind.model_fields[name].default for name in OF_SHARED_ROWS}
    sections["model"] = {**sections["model"], **{k: v for k, v in unset.items() if k in sections["model"]}}
    sections["model"]["from_run"] = str(place.absolute())
    if isinstance(config.model, PlainWalkConfig):
        sections["model"] |= cut_walks(config.model)
    of_files = TrainSection.model_fields
    sections["train"] |= {name: of_files[name].default for name in ("placement", "memory", "scratch", "policy")}
    if getattr(config.model, "in_place", False):
        sections["train"]["lr"] = None
    return sections


def infer(
    run: str | Path,
    edges: str | Path | Ends | HeteroGraph,
    *,
    epochs: int = 1,
    seed: int | None = None,
    num_threads: int | None = None,
    out: str | Path | None = None,
    formats: Sequence[str] = ("npy",),
    overwrite: bool = False,
    progress: bool = False,
) -> Embeddings:
    """Rows of nodes that a run did not have, from their edges; ``graph-emb infer`` in Python.

    A new node begins with its neighbours' mean, by the linear map that leads old nodes from theirs to their rows, see
    ``graph_emb.run.fitted_means``. Then it is walked from, as ``continue_run`` does, and trained with the rows of all
    other nodes frozen.

    Args:
        run: Folder of a run of deepwalk or node2vec; it stays as it is.
        edges: Of the new nodes, by the ids of its graph: a file or graph that ``read_graph`` takes, or sources and
            destinations, (E,) each.
        epochs: Over these walks; 0: the first rows alone.
        seed: Of walks and negatives; None: the run's.
        num_threads: None: ``torch.get_num_threads()``.
        out: Folder for the rows, in ``formats``; None: they are returned alone.
        overwrite: Replace files of the same name in ``out``.
        progress: Show a bar.
    Returns:
        Rows of the new nodes, (U, D) float32, and their ids, ascending.
    Raises:
        ConfigError: no run folder, a setting is wrong, out is a run folder, or no node is new.
        LackingError: the run is of another model, or its folder lacks what is needed.
        DataError: the edges or the run's data set cannot be read, or have ids of another kind.
    """
    check_flags(overwrite=overwrite, progress=progress)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise ConfigError(f"epochs is {epochs!r}; it must be an integer of at least 0")
    if out is None and (overwrite or tuple(formats) != ("npy",)):
        raise ConfigError(f"formats={formats!r}, overwrite={overwrite} have no effect without out; leave them out")
    if out is not None and is_run(user_path(out)):
        raise ConfigError(f"{out} is a run folder, which holds rows of its own; give another folder for the new ones")
    old = OldRun.read(run)
    model: Any = old.config.model
    if not isinstance(model, PlainWalkConfig):
        raise LackingError(f"{run}: infer makes rows of deepwalk and node2vec; continue_run goes on with {model.name}")
    section = old.config.dataset
    given = _by_ids(edges) if isinstance(edges, tuple) else edges
    whole = plain_dataset(grown_dataset(read_dataset(section), given), **edge_policy(model))
    seed = old.config.seed if seed is None else seed
    start = start_of(old, whole.graph, model.model_copy(update={"reach": 0}), seed, only_new=True)
    new = np.flatnonzero(start.is_new)
    if epochs:
        cut = model.model_copy(update=cut_walks(model))
        walks: dict[str, Any] = {"num_walks": cut.num_walks, "walk_length": cut.walk_length, "seed": seed}
        sampler = WalkSampler(whole.graph, p=cut.bias[0], q=cut.bias[1], starts=start.starts, **walks)
        train_new_rows(sampler, cut, start, epochs, seed, num_threads=num_threads, progress=progress)
    found = Embeddings(start.token[new], whole.graph.ids_of(new))
    if out is not None:
        save_embeddings(out, found.weights, found.node_ids, formats, overwrite=overwrite)
    return found


def train_new_rows(
    sampler: WalkSampler,
    model: PlainWalkConfig,
    start: GrownStart,
    epochs: int,
    seed: int,
    *,
    num_threads: int | None = None,
    progress: bool = False,
) -> None:
    """Train the rows of new nodes in ``start`` in place by SGD, those of all other nodes being frozen.

    The first rate is that of a run that goes on, see ``rates.GOING_ON_SHARE``; it falls to 0 over the walks.

    Args:
        sampler: Walks; of a graph whose new nodes are its last ones.
    """
    num_old = int((~start.is_new).sum())
    assert start.is_new[num_old:].all()
    both = [start.token] if start.context is None else [start.token, start.context]
    known, new = ([rows[part] for rows in both] for part in (slice(num_old), slice(num_old, None)))
    tables, far = ((of[0], of[-1]) for of in (known, new))
    kernel = Kernel(model, NegativeSampler(sampler.degrees(), model.negative_power, seed=seed))
    per_epoch = sampler.num_walks_per_epoch
    decay = WalkRates(GOING_ON_SHARE * rate_of_sampler(sampler, epochs), epochs * per_epoch)
    size = max(1, TOKENS_PER_BATCH // model.walk_length)
    with (
        torch_threads(thread_count(num_threads)) as threads,
        ThreadPoolExecutor(threads) as pool,
        threadpool_limits(1, "blas"),
        bar(desc="new nodes", total=epochs * per_epoch, unit="walk", shown=progress) as moved,
    ):
        for epoch in range(epochs):
            for walks, index in sampler.numbered_batches(size, epoch=epoch, num_threads=threads):

                def part(low: int, high: int, of: NDArray = walks, at: NDArray = index, epoch: int = epoch) -> Any:
                    drawn = kernel.draw(of[low:high], epoch, at[low:high])
                    rates = decay.of(epoch * per_epoch + at[low:high])
                    return kernel.run(
                        of[low:high], drawn, tables, tables, rates, MOST_CHANGE, at[low:high], far, frozen=True
                    )

                in_parts(part, len(walks), pool, threads)
                moved.update(len(walks))


def _by_ids(edges: Ends) -> HeteroGraph:
    """Edges by ids as a graph."""
    src, dst = (np.asarray(side) for side in edges)
    ids, numbers = np.unique(np.concatenate([src, dst]), return_inverse=True)
    ends = numbers[: len(src)], numbers[len(src) :]
    return HeteroGraph({NODE_TYPE: len(ids)}, {EDGE_TYPE: ends}, node_ids={NODE_TYPE: ids})

"""Tables of walks: first rows, training, and what is told of it."""

# N nodes, D width, L levels.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.embedding import DistEmbedding
from graph_emb.formats.warm_start import FromFile
from graph_emb.graph.csr import Graph
from graph_emb.models.skipgram.bucket_steps import EPISODE_SHARE, episode_walks, parts_held, tables_share
from graph_emb.models.skipgram.config import MOST_BUCKETS, PlainWalkConfig, SkipGramConfig
from graph_emb.models.skipgram.model import usual_rows
from graph_emb.models.skipgram.training import (
    Sampler,
    SkipGram,
    SkipGramResult,
    nodes_of_own_rows,
    train_skipgram,
)
from graph_emb.run import parallel
from graph_emb.run.family import TrainingJob
from graph_emb.run.machine import check_memory, file_plan, memory_plan
from graph_emb.table.initializers import Initializer
from graph_emb.table.placement import in_memory
from graph_emb.table.tier.pages import least_pages
from graph_emb.table.tier.sizes import fewest_parts, held_pages


def fit_skipgram(
    config: RunConfig,
    sampler: Sampler,
    job: TrainingJob,
    policy: Any,
    init_func: FromFile | Initializer | None = None,
    context_func: Initializer | None = None,
    computed: torch.Tensor | None = None,
    levels: NDArray[Any] | None = None,
) -> tuple[SkipGram, SkipGramResult]:
    """Train tables of all nodes of a sampler's walks.

    Args:
        policy: Who owns which row; None: this process all of them.
        init_func, context_func: First token and context rows; None: the model's own.
        computed: First token rows of all nodes, (N, D), in this process, in place of both.
        levels: The part of each node at each level, (N, L), of composed tables.
    """
    model: Any = config.model
    tables = SkipGram(
        sampler.num_nodes,
        model,
        seed=config.seed,
        part_policy=policy,
        name=None if job.checkpoints is None else parallel.TABLE,
        init_func=init_func,
        context_func=context_func,
        levels=levels,
        own_rows=nodes_of_own_rows(sampler, model, policy),
        placement=config.train.table_placement(model.buckets, model.tables, tables_share(model)),
    )
    if computed is not None:
        assert isinstance(tables.embedding, DistEmbedding)
        tables.embedding.weight[torch.arange(len(computed))] = computed.to(tables.embedding.weight[:1].dtype)
    result = train_skipgram(
        sampler,
        model=tables,
        seed=config.seed,
        num_threads=config.train.threads,
        progress=job.progress,
        log_interval=config.train.log_interval,
        on_batch=lambda entry: job.log(entry.as_dict()),
        checkpoints=job.checkpoints,
    )
    return tables, result


def with_room(
    config: RunConfig, recipes: Sequence[SkipGramConfig], num_nodes: int, *, tables: float, kept: float = 1.0
) -> tuple[RunConfig, str]:
    """A configuration with ``train.buckets`` as a number, and what tables in files will take, in a line.

    Args:
        recipes: As of ``with_buckets``; none of models that are no skip-gram.
        num_nodes: N.
        tables: How many, in units of one of the model's width.
        kept: The share of rows that are kept of a composed table.
    Raises:
        ConfigError: memory or disk has no room for the tables.
    """
    model: Any = config.model
    plan = ""
    if getattr(model, "buckets", 0) is None:
        config = with_buckets(config, recipes, num_nodes)
        model = config.model
    if config.train.memory is None:
        check_memory(num_nodes, tables, model, kept=kept)
        plan = memory_plan(num_nodes, model, config.train, tables=tables * kept, of="nodes")
    else:
        copies = 2 if config.output.context == "add" or getattr(model, "keep_context", False) else 1
        buckets, share = (model.buckets, tables_share(model)) if recipes else (0, 1.0)
        placement = config.train.table_placement(buckets, share=share)
        plan = file_plan(num_nodes, model, placement, copies=copies, tables=tables, of="nodes")
    if recipes and config.train.memory is not None:
        check_room(config, recipes, num_nodes)
    return config, plan


def fewest_buckets(model: SkipGramConfig, placement: Any, num_nodes: int) -> int | None:
    """The fewest parts of ``train.buckets`` of which memory holds ``parts_held``; 0: all of them, or not in place.

    More in memory would let the next part come while one trains, but a walk costs the processor the more, the more
    parts it lies in: twice as many parts take twice as long, which is more than is waited for the disk.

    Args:
        placement: Of each table, without buckets.
        num_nodes: N.
    Returns:
        None where memory does not hold them, however small.
    """
    if in_memory(placement) or not model.in_place or placement.memory_bytes >= num_nodes * model.dim * 4:
        return 0
    return fewest_parts(num_nodes, model.dim, int(placement.memory_bytes / (1 + EPISODE_SHARE)), parts_held(model))


def _parts_text(recipe: SkipGramConfig, parts: int) -> str:
    return f"{'one' if parts_held(recipe) == 1 else 'two'} of {parts:,} parts"


def with_buckets(config: RunConfig, recipes: Sequence[SkipGramConfig], num_nodes: int) -> RunConfig:
    """A configuration with ``train.buckets=auto`` as the number that the largest of its tables wants.

    Args:
        recipes: Of skip-gram, the tables of which share ``train.memory``.
        num_nodes: N.
    Raises:
        ConfigError: memory that does not hold ``parts_held``, or all of them where they should lie in parts.
    """
    placement = config.train.table_placement(tables=sum(recipe.tables for recipe in recipes))
    wanted = [fewest_buckets(recipe, placement, num_nodes) for recipe in recipes]
    most, limit = max(MOST_BUCKETS + 1 if parts is None else parts for parts in wanted), min(MOST_BUCKETS, num_nodes)
    if most > limit:
        raise ConfigError(
            f"train.memory = {config.train.memory!r} does not hold {_parts_text(recipes[0], limit)} of "
            f"{num_nodes:,} rows in each table; raise it, or leave train.buckets out"
        )
    config.train.check_parts(most)
    return config.model_copy(update={"model": config.model.model_copy(update={"buckets": most})})


def check_room(config: RunConfig, recipes: Sequence[SkipGramConfig], num_nodes: int) -> None:
    """Raise a ConfigError where ``train.memory`` holds too little of each table for SGD in place.

    Args:
        config: With ``train.buckets`` as a number.
        recipes: As of ``with_buckets``.
        num_nodes: N.
    """
    model: Any = config.model
    parts: int = model.buckets
    placement = config.train.table_placement(parts, sum(recipe.tables for recipe in recipes), tables_share(model))
    for recipe in () if in_memory(placement) else recipes:
        held, pages = held_pages(num_nodes, recipe.dim, placement.memory_bytes)
        least = least_pages(pages, parts, parts_held(recipe))
        if not recipe.in_place or held >= least:
            continue
        what = f"{_parts_text(recipe, parts)} of {num_nodes:,} rows in" if parts else "a page of"
        fitting = fewest_buckets(
            recipe, config.train.table_placement(tables=sum(one.tables for one in recipes)), num_nodes
        )
        more = f", or take train.buckets={fitting}" if parts and fitting else ""
        raise ConfigError(f"train.memory = {config.train.memory!r} does not hold {what} each table; raise it{more}")


def bucket_plan(model: SkipGramConfig, placement: Any, num_nodes: int, walk_length: int, per_epoch: int) -> str:
    """The order of training by buckets, in a line; or how to ask for it, where rows in files do not fit into memory.

    Args:
        placement: Of each table.
        num_nodes: N.
        walk_length: Nodes of a walk; 2: it is an edge.
        per_epoch: Walks of an epoch.
    """
    table = num_nodes * model.dim * 4
    if not model.buckets:
        parts = fewest_buckets(model, placement, num_nodes)
        if not parts:
            return ""
        return (
            f"plan: random rows of files are slow; train.buckets=auto ({parts} here) trains pairs by buckets of two "
            "parts, many times as fast, in another order and so to other rows"
        )
    parts, of = model.buckets, "walks" if walk_length > 2 else "edges"
    size = min(per_epoch, episode_walks(model, num_nodes, walk_length, model.epochs * per_epoch))
    said = f"plan: {parts} parts of the nodes, {parts**2} buckets; an episode is {size:,} {of}"
    if in_memory(placement) or placement.memory_bytes >= table:
        return said
    moved = (parts - 1) * (parts + 1) * (table // parts)  # P - 1 token parts and P (P - 1) context parts
    rate = size * walk_length / (2 * moved / 1e9)
    return f"{said}, reads and writes {size_text(moved)} each; a disk of 1 GB/s keeps up with {rate:,.0f} tokens/s"


def saved_width(config: RunConfig) -> int:
    """Numbers of a saved row."""
    return config.model.dim * (2 if config.output.context == "concat" else 1)


def training_metrics(result: SkipGramResult) -> dict[str, Any]:
    """The last line of the history, speed, parameters, and what memory held of rows in files."""
    last = result.history[-1] if result.history else None
    seconds = last.seconds if last else 0.0
    return {
        **(last.as_dict() if last else {}),
        "first_lr": result.first_lr,
        "tokens_per_second": round(last.tokens / seconds) if last and seconds else None,
        "parameters": result.model.num_parameters,
        **cache_metrics(result.model),
    }


def cache_metrics(model: SkipGram) -> dict[str, Any]:
    """What memory held of rows in files, as ``cache``; nothing of rows in memory."""
    cache = {name: own.as_dict() for name, own in model.cache_stats().items()}
    return {"cache": cache} if cache else {}


def computed_rows(model: PlainWalkConfig, graph: Graph, seed: int) -> NDArray[np.float32]:
    """First token rows (N, D) by the spectral model that ``model.warm_start`` names, with its defaults."""
    from graph_emb.models.spectral.config import SPECTRAL_MODELS
    from graph_emb.models.spectral.factorise import spectral_rows

    name = str(model.warm_start)
    return spectral_rows(graph, SPECTRAL_MODELS[name](name=name, dim=model.dim), seed)


def first_rows(model: PlainWalkConfig, seed: int, node_ids: NDArray[Any] | None) -> FromFile | None:
    """The initializer of the token table that ``model.warm_start`` asks for; None: the model's own.

    Args:
        model: Names the file; its usual rows take the places of ids that the file lacks, where that is allowed.
        seed: Of the usual rows.
        node_ids: The id of each node, shape (N,); None: 0 .. N-1.
    """
    if model.warm_start is None:
        return None
    if not model.warm_start_partial:
        return FromFile(model.warm_start, node_ids)
    return FromFile(model.warm_start, node_ids, missing=usual_rows(model, seed), unknown="ignore")

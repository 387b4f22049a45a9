"""``graph-emb eval`` and ``neighbors``: judge embeddings of a run, folder or file, by labels, edges or the eye."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.config import (
    DatasetSection,
    EvaluateSection,
    RunConfig,
    config_from,
    parse_override,
    read_config_file,
    section_from,
)
from graph_emb.core.errors import ConfigError, DataError, LackingError
from graph_emb.core.paths import user_path
from graph_emb.core.storage import replace_json
from graph_emb.core.terminal import listed, say
from graph_emb.evaluate.indexes import EXACT
from graph_emb.evaluate.nearest import NearestNeighbors
from graph_emb.formats.embedding_files import Embeddings, align, load_embeddings, places_of
from graph_emb.formats.network_files import load_network
from graph_emb.graph import Graph, read_labels
from graph_emb.graph.label_files import read_split
from graph_emb.graph.views import PlainDataset, knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.run.evaluation import LAST_NETWORK, Finding, judge_classes, judge_links, judge_split
from graph_emb.run.families.kge import entity_ids, relation_ids
from graph_emb.run.families.triple_findings import ENTITY, RELATION, judge_triples
from graph_emb.run.family import read_again
from graph_emb.run.inputs import (
    edge_policy,
    lacks_explained,
    read_dataset,
    read_plain_dataset,
    with_held_out_triples,
)
from graph_emb.run.run_folder import CONFIG, folder_of_table, is_run, read_run
from graph_emb.run.scores import scores_of
from graph_emb.table.placement import AUTO, DEVICE

SAME = 1e-6
"""Scores that differ by less are the same."""
TENTHS = tuple(tenth / 10 for tenth in range(1, 10))


def run(args: argparse.Namespace) -> int:
    """Print the table of one evaluation; --json writes its numbers."""
    embeddings = load_embeddings(args.embeddings)
    judge = _judge_classes if args.command == "eval node-class" else _judge_links
    if args.dataset is None:
        found = judge(args, embeddings)
    else:
        with lacks_explained(_named(args)):
            found = judge(args, embeddings)
    if args.json is not None:
        if isinstance(found, Finding):
            content = {"task": found.name, **found.scores.as_dict()}
        else:
            content = {"task": "triples", **{finding.name: finding.scores.as_dict() for finding in found}}
        replace_json(args.json, {"embeddings": str(args.embeddings), **content})
    print("\n\n".join(map(str, [found] if isinstance(found, Finding) else found)))
    return 0


def run_again(args: argparse.Namespace) -> int:
    """Judge a run anew by its own data, seed and sections, or by ``evaluate`` fields given here; --json writes it."""
    place = user_path(args.run)
    config, metrics, tables = read_run(place)
    if config.dataset.digest is not None:
        raise LackingError(
            f"{place}: its graph {config.dataset.name} was in memory and is not saved; judge its rows in Python"
        )
    layers = [parse_override(text, config.model.name) for text in args.overrides]
    for text, layer in zip(args.overrides, layers, strict=True):
        if set(layer) != {"evaluate"}:
            raise ConfigError(f"{text!r} has no effect on a finished run; give fields of evaluate, such as scorer=dot")
    _check_held_out(place, config)
    given = {"dataset": {"root": args.root}, "train": {"threads": args.threads}}
    flags: dict[str, Any] = {name: fields for name, fields in given.items() if None not in fields.values()}
    if config.train.device != "cpu":  # rows are judged by the processor, also where there is no such device
        flags["train"] = {**flags.get("train", {}), "device": "cpu"}
        if config.train.placement == DEVICE:
            flags["train"]["placement"] = AUTO
    family = read_again(config, {"evaluate": {"enabled": True}}, flags, *layers)
    with lacks_explained(family.config.dataset):
        data = family.load()
    findings = family.judge_rows(family.aligned(tables, data), data, load_network(place), progress=not args.quiet)
    if not findings:
        raise LackingError(f"data set {family.config.dataset.name} has nothing that rows are judged by")
    found = {finding.name: finding.scores.as_dict() for finding in findings}
    if args.json is not None:
        replace_json(args.json, {"run": str(place), "evaluation": found})
    print("\n\n".join(map(str, findings)))
    say(args, f"\n{_compared(metrics.get('evaluation', {}), found)}")
    return 0


def _compared(saved: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """How new evaluations are beside those of metrics.json."""
    if LAST_NETWORK in found:
        saved = {LAST_NETWORK: {"metrics": _at_the_end(saved, found[LAST_NETWORK]["metrics"])}}
    common = {task: values for task, values in saved.items() if task in found}
    if not common and set(saved) - {"error"}:
        return (
            "these are scores of the rows alone; those in metrics.json are of a network, which a run of an earlier "
            "version did not keep"
        )
    before, now = scores_of(common), scores_of(found)
    moved = [f"{name} {value:.4f}" for name, value in before.items() if abs(value - now.get(name, value)) > SAME]
    if not before:
        return "metrics.json has no scores"
    return f"metrics.json has other values: {', '.join(moved)}" if moved else "metrics.json has the same values"


def _at_the_end(saved: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The last line of a run's own evaluations as metrics of the network that it keeps, if it is of the same epoch."""
    runs = saved.get("graph_network", {}).get("runs") or [saved.get("link_predictor", {})]
    last = (runs[0].get("history") or [None])[-1]
    parts = ("valid", "test")
    return {
        name: {part: (last[part] or {}).get(name) for part in parts}
        for name, found in metrics.items()
        if last is not None and last["epoch"] == found["epoch"]
    }


def neighbors(args: argparse.Namespace) -> int:
    """Print the nearest rows of some nodes, nearest first; --json writes them, --save-index an index."""
    from tabulate import tabulate

    if not args.id and args.save_index is None:
        raise ConfigError("neighbors needs --id ID, a node whose neighbours are asked for, or --save-index FILE")
    if args.json is not None and not args.id:
        raise ConfigError(f"--json {args.json} needs --id ID, a node whose neighbours are asked for")
    embeddings = load_embeddings(folder_of_table(user_path(args.embeddings), args.table))
    weights, ids = embeddings.weights, embeddings.node_ids
    options = {"index": args.index, "effort": args.effort, "saved": args.load_index}
    search = NearestNeighbors(weights, ids, args.metric, **options)
    if args.save_index is not None:
        search.save_index(args.save_index)
        say(args, f"{args.save_index}: {len(weights):,} rows in their order, index of {args.index}")
    if args.index != EXACT:
        k = min(args.k, len(weights) - 1)
        say(args, f"recall {search.recall(k):.3f} of the exact {k} nearest, over {min(100, len(weights))} rows")
    if not args.id:
        return 0
    places = places_of(embeddings, args.id)
    found = search.nearest_rows(np.arange(len(args.id)) if places is None else places, args.k)
    near = [list(zip(*pair, strict=True)) for pair in zip(found.ids.tolist(), found.scores.tolist(), strict=True)]
    if args.json is not None:
        by_id = [{"id": asked, "neighbors": pairs} for asked, pairs in zip(args.id, near, strict=True)]
        replace_json(args.json, {"embeddings": str(args.embeddings), "metric": args.metric, "nearest": by_id})
    rows = [(asked, *pair) for asked, pairs in zip(args.id, near, strict=True) for pair in pairs]
    print(tabulate(rows, ["id", "neighbour", args.metric], floatfmt=".4f", disable_numparse=[0, 1]))
    return 0


def _judge_classes(args: argparse.Namespace, embeddings: Embeddings) -> Finding:
    section = _section({"ratios": TENTHS, "shuffles": 10}, ratios=args.ratios, shuffles=args.shuffles)
    seed = 0
    if args.seed is not None:  # as the configuration reads it
        seed = config_from({"dataset": "digits", "model": "deepwalk"}, parse_override(f"seed={args.seed}")).seed
    if args.labels is not None:
        if args.root is not None:
            raise ConfigError(f"--root {args.root} means nothing with --labels, which is a file")
        graph = Graph.without_edges(len(embeddings.weights), embeddings.node_ids)
        dataset = PlainDataset(str(args.embeddings), graph, read_labels(args.labels, graph))
        weights = embeddings.weights
    else:
        dataset = _labelled(args, len(embeddings.weights))
        weights = _in_order(embeddings, dataset, args.embeddings)
    if args.split is not None:
        for name in ("ratios", "shuffles", "seed"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name} {getattr(args, name)} has no effect with --split; leave one of them out")
        assert dataset.labels is not None  # of the file, or checked above
        split = read_split(args.split, dataset.graph).checked(dataset.labels)
        return judge_split(weights, dataset.labels, split, progress=not args.quiet)
    return judge_classes(weights, dataset, section, seed, progress=not args.quiet)


def _judge_links(args: argparse.Namespace, embeddings: Embeddings) -> Finding | list[Finding]:
    if is_run(args.embeddings) and (Path(args.embeddings) / RELATION).is_dir():
        return _judge_triples(args, embeddings)
    section = _section({}, hits=args.hits, scorer=args.scorer)
    data, seed, policy = _dataset(args)
    dataset = read_plain_dataset(data, seed, **policy)
    if dataset.link_split is None:
        raise LackingError(
            f"data set {dataset.name} has no held-out edges; judge one that has, a run with dataset.hold_out, or give "
            "--dataset and --test-edges"
        )
    return judge_links(_in_order(embeddings, dataset, args.embeddings), dataset, section)


def _judge_triples(args: argparse.Namespace, embeddings: Embeddings) -> list[Finding]:
    """Ranks of the held-out parts by the rows of a run of a knowledge graph, as ``train`` gives them."""
    for name in ("hits", "scorer"):
        if value := getattr(args, name):
            raise ConfigError(
                f"--{name} {value} has no effect on a run of triples, whose model scores them; leave it out"
            )
    config = config_from(read_config_file(Path(args.embeddings) / CONFIG))
    section, _, _ = _dataset(args)
    graph, _ = with_held_out_triples(knowledge_graph(read_dataset(section, file_format="triples")), section)
    given = {ENTITY: embeddings, RELATION: load_embeddings(Path(args.embeddings) / RELATION)}
    tables = {}
    for name, ids in ((ENTITY, entity_ids(graph)), (RELATION, relation_ids(graph))):
        nodes = PlainDataset(graph.name, Graph.without_edges(len(ids), ids))
        tables[name] = Embeddings(_in_order(given[name], nodes, f"{args.embeddings}, {name}"), ids)
    model: Any = config.model
    scorer = model if isinstance(model, KGEConfig) else model.decoder_settings
    findings = judge_triples(tables, graph, scorer, model, config.seed)
    if not findings:
        raise LackingError(f"data set {graph.name} has no held-out triples; give --dataset and --test-edges")
    return findings


def _section(defaults: dict[str, Any], **flags: str | None) -> EvaluateSection:
    """The evaluate section of flags; lists are written a,b,c."""
    values = dict(defaults)
    for name, text in flags.items():
        if text is not None:
            listing = name in ("ratios", "hits")
            values[name] = listed(text) if listing else text
    return section_from("evaluate", values)


def _labelled(args: argparse.Namespace, num_rows: int) -> PlainDataset:
    """The nodes that have labels, without edges; of several labelled types one with as many nodes as there are rows."""
    section, _, _ = _dataset(args)
    dataset = read_dataset(section)
    graph, labels = dataset.graph, dataset.labels
    if not labels:
        raise LackingError(f"data set {dataset.name} has no labels; give --labels FILE")
    ntype = next((ntype for ntype in labels if graph.num_nodes[ntype] == num_rows), next(iter(labels)))
    nodes = Graph.without_edges(graph.num_nodes[ntype], graph.node_ids.get(ntype))
    return PlainDataset(dataset.name, nodes, labels[ntype])


def _dataset(args: argparse.Namespace) -> tuple[DatasetSection, int, dict[str, Any]]:
    """The data set of --dataset, else that of the run; with seed and policy of the edges that the run held out."""
    if args.dataset is not None:
        return _named(args), 0, {}
    if getattr(args, "test_edges", None) is not None:
        raise ConfigError(f"--test-edges {args.test_edges} needs --dataset, the graph that they are of")
    if not is_run(args.embeddings):
        raise ConfigError(f"{args.embeddings} is no run folder, so --dataset must say what to judge it by")
    config = config_from(read_config_file(Path(args.embeddings) / CONFIG))
    _check_held_out(args.embeddings, config)
    section = config.dataset if args.root is None else config.dataset.model_copy(update={"root": args.root})
    return section, config.seed, edge_policy(config.model)


def _check_held_out(run: str | Path, config: RunConfig) -> None:
    """Refuse a run whose held-out edges cannot be drawn again."""
    if config.dataset.hold_out and "symmetrize" not in config.model.model_fields_set:
        raise ConfigError(
            f"{run}: its {CONFIG} is of an earlier version and lacks model.symmetrize, on which the "
            "held-out edges depend; add `symmetrize: true` if the graph was undirected, else `symmetrize: false`"
        )


def _named(args: argparse.Namespace) -> DatasetSection:
    """The data set of --dataset."""
    test_edges = getattr(args, "test_edges", None)  # of eval link
    return section_from("dataset", {"name": args.dataset, "root": args.root, "test_edges": test_edges})


def _in_order(embeddings: Embeddings, dataset: PlainDataset, source: str) -> NDArray[np.floating]:
    """The rows in the order of the data set's nodes."""
    num_rows, num_nodes = len(embeddings.weights), dataset.graph.num_nodes
    if num_rows != num_nodes:  # equal ids in 0 .. N-1 say nothing where the graphs have different sizes
        raise DataError(f"{source} has {num_rows} rows, {dataset.name} has {num_nodes} nodes; are they of one graph?")
    return align(embeddings, dataset.graph)

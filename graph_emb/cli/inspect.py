"""The commands that look and copy: ``checkpoint inspect``, ``checkpoint merge``, ``export`` and ``ogb report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tabulate import tabulate

from graph_emb.checkpoint.deltas import merge_checkpoints
from graph_emb.checkpoint.export import export_checkpoint
from graph_emb.checkpoint.manifest import NAME
from graph_emb.checkpoint.periodic import newest
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.paths import user_path
from graph_emb.core.storage import json_text, replace_json
from graph_emb.core.terminal import listed, say
from graph_emb.core.yaml_text import parse_yaml
from graph_emb.formats.embedding_files import copy_embeddings
from graph_emb.run.run_folder import folder_of_table, is_run


def inspect(args: argparse.Namespace) -> int:
    """Print what a checkpoint holds, after every byte of it was found to be as it was written."""
    checkpoint = Checkpoint(checkpoint_at(args.folder))
    checkpoint.verify()
    facts = facts_of(checkpoint)
    if args.json == "-":
        print(json_text(facts), end="")
        return 0
    if args.json is not None:
        replace_json(args.json, facts)
    print(as_text(facts))
    say(args, f"\n{len(checkpoint.manifest.files())} files, {facts['bytes']:,} bytes: sizes and checksums are right")
    return 0


def merge(args: argparse.Namespace) -> int:
    """Write the full checkpoint that a base and its deltas are together."""
    place = merge_checkpoints(args.base, args.deltas, args.out)
    say(args, f"{place}: step {Checkpoint(place).manifest.step}, {len(args.deltas)} deltas merged")
    return 0


def checkpoint_at(place: str | Path) -> Path:
    """A checkpoint's folder, or the newest complete one in a folder of checkpoints.

    Raises:
        DataError: there is neither.
    """
    folder = user_path(place)
    if (folder / NAME).is_file():
        return folder
    found = newest(folder)
    if found is None:
        raise DataError(f"{folder} is no complete checkpoint and holds none: there is no {NAME}")
    return found


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The manifest's facts as JSON, without the lists of files and of what the dense part is made of."""
    manifest = checkpoint.manifest
    return {
        "checkpoint": str(checkpoint.path),
        "step": manifest.step,
        "created": manifest.created,
        "written_by": manifest.world.model_dump(),
        "metric": manifest.metric,
        "delta": manifest.parent.model_dump() if manifest.parent else None,
        "tables": {
            name: {
                **entry.model_dump(exclude={"state", "files"}),
                "state": {key: f"{piece.dtype} per {piece.kind}" for key, piece in entry.state.items()},
                "files": len(entry.files),
                "bytes": sum(file.bytes for file in entry.files),
            }
            for name, entry in manifest.tables.items()
        },
        "composed": {
            name: {"kind": entry.kind, "num_rows": entry.num_rows} for name, entry in (manifest.composed or {}).items()
        },
        "optimizers": [entry.model_dump() for entry in manifest.optimizers],
        "dense_bytes": manifest.dense.bytes if manifest.dense else 0,
        "generators": sorted(manifest.generators),
        "extra": manifest.extra,
        "files": len(manifest.files()),
        "bytes": sum(file.bytes for file in manifest.files()),
        "verified": True,
    }


def as_text(facts: dict[str, Any]) -> str:
    """The facts in lines and a table."""
    written = facts["written_by"]
    ranks = "1 rank" if written["ranks"] == 1 else f"{written['ranks']} ranks"
    lines = [
        ("checkpoint", facts["checkpoint"]),
        ("step", f"{facts['step']:,}"),
        ("created", facts["created"]),
        ("written by", f"{ranks} in {written['mode']} mode, graph_emb {written['library']}"),
        ("metric", "" if facts["metric"] is None else f"{facts['metric']:.6g}"),
        ("delta", "number {sequence}, follows {name}".format(**facts["delta"]) if facts["delta"] else ""),
        ("composed", ", ".join(f"{k}: {v['kind']}, {v['num_rows']:,} rows" for k, v in facts["composed"].items())),
        ("model and others", f"{facts['dense_bytes']:,} bytes" if facts["dense_bytes"] else ""),
        ("generators", ", ".join(facts["generators"])),
        ("extra", ", ".join(facts["extra"])),
    ]
    rows = [
        (
            name,
            f"{entry['num_rows']:,} x {entry['dim']}",
            entry["dtype"],
            " ".join(
                [entry["rule"], *(f"{key}={value}" for key, value in {**entry["numbers"], **entry["options"]}.items())]
            )
            if entry["rule"]
            else "none saved",
            ", ".join(f"{key} ({kind})" for key, kind in entry["state"].items()) or "none",
            f"{entry['files']:,}",
            f"{entry['bytes']:,}",
        )
        for name, entry in facts["tables"].items()
    ]
    heads = ("table", "rows x width", "dtype", "rule", "state", "files", "bytes")
    table = tabulate(rows, heads, disable_numparse=True, maxcolwidths=[30, None, None, 44, 36, None, None])
    return f"{tabulate([line for line in lines if line[1]], tablefmt='plain', disable_numparse=True)}\n\n{table}"


def export(args: argparse.Namespace) -> int:
    """Embeddings of a run or a checkpoint in another format, by original id, in bounded memory; prints their paths."""
    source = user_path(args.source)
    if is_run(args.out):
        raise ConfigError(f"--out {args.out} is a run folder; give a folder for exports")
    checkpoint = source if (source / NAME).is_file() else newest(source)
    if checkpoint is not None:
        paths = export_checkpoint(
            checkpoint, args.out, [args.format], table=args.table, ids=args.ids, overwrite=args.overwrite
        )
    else:
        if args.ids is not None:
            raise ConfigError(f"--ids {args.ids} is for checkpoints; {source} has its own ids")
        paths = copy_embeddings(_table_folder(source, args.table), args.out, [args.format], overwrite=args.overwrite)
    for path in paths:
        print(path)
    return 0


def _table_folder(source: Path, table: str | None) -> Path:
    """The folder of a table: of a run by its name, else beside the main one's files."""
    if table is None or is_run(source):
        return folder_of_table(source, table)
    known = sorted({path.parent.name for path in source.glob("*/embeddings.*")})
    if table not in known:
        raise ConfigError(f"{source} has no table {table!r} besides its main one; others: {', '.join(known) or 'none'}")
    return source / table


def ogb_report(args: argparse.Namespace) -> int:
    """Check the seeds against the rules and print, as Markdown, the record that a leaderboard of OGB asks for."""
    from graph_emb.ogb.report import Submission, make_report

    tried = {}
    for text in args.tried:
        path, sign, values = text.partition("=")
        if not sign or not path or not listed(values):
            raise ConfigError(f"--tried {text!r} is not of the form SETTING=V,V, such as predictor.lr=0.001,0.01")
        tried[path] = [_value(value) for value in listed(values)]
    told = Submission(args.method, args.contact, args.code, args.paper, args.external_data)
    report = make_report(args.runs, partial=args.partial, tried=tried, submission=told)
    text = report.markdown()
    if args.markdown is not None:
        Path(args.markdown).write_text(text, encoding="utf-8")
    if args.json is not None:
        replace_json(args.json, report.as_dict())
    print(text, end="")
    return 0


def _value(text: str) -> Any:
    """A value as an override's; 1e-3, which is a text in YAML, is the number that a setting makes of it."""
    value = parse_yaml(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value

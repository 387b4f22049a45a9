"""``graph-emb checkpoint inspect``: what a checkpoint holds, and whether every byte of it is as it was written."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from graph_emb.checkpoint.manifest import NAME, TableEntry
from graph_emb.checkpoint.periodic import newest
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.cli.console import say
from graph_emb.core.errors import DataError
from graph_emb.core.storage import json_text, replace_json

STDOUT = "-"


def run(args: argparse.Namespace) -> int:
    """Verify all files, then print."""
    checkpoint = Checkpoint(checkpoint_at(args.folder))
    checkpoint.verify()
    facts = describe(checkpoint)
    if args.json == STDOUT:
        print(json_text(facts), end="")
        return 0
    if args.json is not None:
        replace_json(args.json, facts)
    print(as_text(facts))
    say(args, f"\n{len(checkpoint.manifest.files())} files, {facts['bytes']:,} bytes: sizes and checksums are right")
    return 0


def checkpoint_at(place: str | Path) -> Path:
    """A checkpoint's folder, or the newest complete one in a folder of checkpoints.

    Raises:
        DataError: there is neither.
    """
    folder = Path(place).expanduser()
    if (folder / NAME).is_file():
        return folder
    found = newest(folder)
    if found is None:
        raise DataError(f"{folder} is no complete checkpoint and holds none: there is no {NAME}")
    return found


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """The manifest's facts as JSON, without the lists of files and of what the dense part is made of."""
    manifest = checkpoint.manifest
    return {
        "checkpoint": str(checkpoint.path),
        "step": manifest.step,
        "created": manifest.created,
        "written_by": manifest.world.model_dump(),
        "metric": manifest.metric,
        "tables": {name: _table(entry) for name, entry in manifest.tables.items()},
        "optimizers": [entry.model_dump() for entry in manifest.optimizers],
        "dense_bytes": manifest.dense.bytes if manifest.dense else 0,
        "generators": sorted(manifest.generators),
        "extra": manifest.extra,
        "files": len(manifest.files()),
        "bytes": sum(file.bytes for file in manifest.files()),
        "verified": True,
    }


def _table(entry: TableEntry) -> dict[str, Any]:
    state = {name: f"{piece.dtype} per {piece.kind}" for name, piece in entry.state.items()}
    facts = entry.model_dump(exclude={"state", "files"})
    return {**facts, "state": state, "files": len(entry.files), "bytes": sum(file.bytes for file in entry.files)}


def as_text(facts: dict[str, Any]) -> str:
    """The facts in lines and a table."""
    from tabulate import tabulate

    written = facts["written_by"]
    ranks = "1 rank" if written["ranks"] == 1 else f"{written['ranks']} ranks"
    lines = [
        ("checkpoint", facts["checkpoint"]),
        ("step", f"{facts['step']:,}"),
        ("created", facts["created"]),
        ("written by", f"{ranks} in {written['mode']} mode, graph_emb {written['library']}"),
    ]
    if facts["metric"] is not None:
        lines.append(("metric", f"{facts['metric']:.6g}"))
    if facts["dense_bytes"]:
        lines.append(("model and others", f"{facts['dense_bytes']:,} bytes"))
    if facts["generators"]:
        lines.append(("generators", ", ".join(facts["generators"])))
    if facts["extra"]:
        lines.append(("extra", ", ".join(facts["extra"])))
    rows = [
        (
            name,
            f"{entry['num_rows']:,} x {entry['dim']}",
            entry["dtype"],
            _pairs(entry["rule"], {**entry["numbers"], **entry["options"]}),
            ", ".join(f"{key} ({kind})" for key, kind in entry["state"].items()) or "none",
            f"{entry['files']:,}",
            f"{entry['bytes']:,}",
        )
        for name, entry in facts["tables"].items()
    ]
    heads = ("table", "rows x width", "dtype", "rule", "state", "files", "bytes")
    table = tabulate(rows, heads, disable_numparse=True, maxcolwidths=[30, None, None, 44, 36, None, None])
    return f"{tabulate(lines, tablefmt='plain', disable_numparse=True)}\n\n{table}"


def _pairs(rule: str | None, numbers: dict[str, Any]) -> str:
    if rule is None:
        return "none saved"
    return " ".join([rule, *(f"{key}={value}" for key, value in numbers.items())])

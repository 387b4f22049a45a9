"""``graph-emb export``: embeddings of a run or of a checkpoint in another format, by original id, in bounded memory."""

from __future__ import annotations

import argparse
from pathlib import Path

from graph_emb.checkpoint.export import export_checkpoint
from graph_emb.checkpoint.manifest import NAME
from graph_emb.checkpoint.periodic import newest
from graph_emb.core.errors import ConfigError
from graph_emb.formats.embedding_files import copy_embeddings
from graph_emb.run.run_folder import is_run


def run(args: argparse.Namespace) -> int:
    """Write the files and print their paths."""
    source = Path(args.source).expanduser()
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
        paths = copy_embeddings(_table(source, args.table), args.out, [args.format], overwrite=args.overwrite)
    for path in paths:
        print(path)
    return 0


def _table(source: Path, table: str | None) -> Path:
    """The folder of a run's table: the main one lies in the run folder, others in folders of their names."""
    if table is None:
        return source
    if not (source / table).is_dir():
        known = sorted(path.parent.name for path in source.glob("*/embeddings.*"))
        raise ConfigError(f"{source} has no table {table!r} besides its main one; others: {', '.join(known) or 'none'}")
    return source / table

"""``graph-emb export``: embeddings of a run in another format, by original id."""

from __future__ import annotations

import argparse

from graph_emb.data.export import load_embeddings, save_embeddings
from graph_emb.errors import ConfigError
from graph_emb.train.run_folder import is_run


def run(args: argparse.Namespace) -> int:
    """Write the files and print their paths."""
    embeddings = load_embeddings(args.source)
    if is_run(args.out):
        raise ConfigError(f"--out {args.out} is a run folder; give a folder for exports")
    paths = save_embeddings(args.out, embeddings.weights, embeddings.node_ids, [args.format], overwrite=args.overwrite)
    for path in paths:
        print(path)
    return 0

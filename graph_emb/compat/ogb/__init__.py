"""OGB data sets on the installed PyTorch: from the raw files, without a cache, a prompt or the network.

Differences from ogb 1.3.6, which cannot load its data sets under torch >= 2.6 (snap-stanford/ogb#497):

* split files are read with `weights_only` left on; only numpy arrays are allowed beside tensors;
* `processed/data_processed` (a pickle that `weights_only` refuses) is neither read nor written, so the
  folder may be read-only and the second load equals the first;
* nothing is downloaded unless `download=True`, and nothing is ever asked on standard input;
* the look-up of a newer ogb, a thread that `import ogb` starts, does not run.
"""

from graph_emb.compat.ogb.catalog import Metadata, known_names, metadata
from graph_emb.compat.ogb.classes import evaluator, load
from graph_emb.compat.ogb.datasets import (
    OGBHetero,
    OGBLink,
    OGBNode,
    read_dataset,
    read_hetero_dataset,
    read_link_dataset,
    read_node_dataset,
)

__all__ = [
    "Metadata",
    "OGBHetero",
    "OGBLink",
    "OGBNode",
    "evaluator",
    "known_names",
    "load",
    "metadata",
    "read_dataset",
    "read_hetero_dataset",
    "read_link_dataset",
    "read_node_dataset",
]

"""DGL and OGB on the installed PyTorch.

`prepare` runs when `graph_emb` is imported and costs microseconds: it imports neither package.
`graph_emb.compat.dgl.load` and `graph_emb.compat.ogb` import them when something needs them.
"""

from __future__ import annotations

import os

from graph_emb.compat import graphbolt


def prepare() -> None:
    """Let a later `import dgl` succeed, print nothing and leave nothing in the home folder.

    Without DGLBACKEND, dgl (all versions) picks a backend, prints it and writes ~/.dgl/config.json.
    Calling this again changes nothing.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    graphbolt.install()

"""DGL's own tables and optimizers, without servers, in a process of their own: what ours are compared with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

# Leaves a script with ``dgl``, ``policy``, the ``first`` rows of a table of 11 x 4, and ``batches``.
SETUP = """
import os, sys
import torch
os.environ["DGL_DIST_MODE"] = "standalone"
folder = sys.argv[1]
import graph_emb as ge
from graph_emb.compat import dgl as compat_dgl
dgl = compat_dgl.load()
import dgl.distributed
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)  # for dgl 2.1.0
from tests.optim.oracles import batches
graph = dgl.graph((torch.arange(11), (torch.arange(11) + 1) % 11))
graph.ndata["x"] = torch.zeros(11, 1)
dgl.distributed.partition_graph(graph, "ring", 1, folder, part_method="random")
dgl.distributed.initialize(folder + "/ip.txt")
whole = dgl.distributed.DistGraph("ring", part_config=folder + "/ring.json")
policy = whole.get_node_partition_policy("_N")
first = torch.linspace(-1, 1, 44).view(11, 4)
"""
END = """
sys.stdout.flush()
os._exit(0)  # DGL's own exit hook raises in standalone mode (1.1.3)
"""


def run(script: str, folder: Path) -> str:
    """What a script printed that goes on after ``SETUP``; files of DGL's lie in ``folder``."""
    (folder / "ip.txt").write_text("127.0.0.1\n", encoding="utf-8")
    command = [sys.executable, "-c", SETUP + script + END, str(folder)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

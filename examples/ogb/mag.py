"""ogbn-mag: R-GCN whose authors, fields and institutions have rows that learn; accuracy of a paper's venue.

    python examples/ogb/mag.py --root data --out runs/ogbn-mag

Recipe: DGL's examples/pytorch/ogb/ogbn-mag (hetero_rgcn.py), published at .4781: papers bring their 128 features, the
other 1,203,354 nodes have learned rows of 128 numbers, 2 layers of 64, neighbourhoods of 25 and 20 sampled by relation,
steps of 1,024 papers, 3 epochs, dropout 0.5, Adam 0.01 for network and rows. Every relation has its reverse; citations
go both ways within one relation. What differs from the published recipe:

* Adam of the learned rows is sparse: rows outside a step keep still;
* a citation that stands in both directions counts twice in the mean over a relation.

The learned rows and Adam's state for them take 1.7 GiB on the real set.
"""

import sys

from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.train.ogb.gnn import RGCNRecipe
from graph_emb.train.ogb.script import Script, typed_graph

RGCN = RGCNConfig(
    dim=128,
    hidden_dim=64,
    num_layers=2,
    dropout=0.5,
    lr=0.01,
    epochs=3,
    batch_size=1024,
    fanouts=(25, 20),
)

SCRIPT = Script(
    file="examples/ogb/mag.py",
    dataset="ogbn-mag",
    recipes={"rgcn": RGCNRecipe(RGCN)},
    description=__doc__,
    load=typed_graph("ogbn-mag"),
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

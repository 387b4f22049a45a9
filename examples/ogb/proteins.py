"""ogbn-proteins: node2vec or LINE and the features of a protein's edges, then OGB's MLP; mean ROC-AUC of 112 functions.

    python examples/ogb/proteins.py --root data --out runs/ogbn-proteins

Recipe: node2vec.py under mlp.py (3 layers of 256 without batch norm, dropout 0.5, Adam 0.01, 1,000 epochs) of OGB's
examples/nodeproppred/proteins, which reads the mean of the 8 features of a protein's edges beside the embedding.
``line`` is DGL's examples/pytorch/ogb/line, 600 million samples with 1 negative, under the same MLP. What differs from
the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published row did;
* node2vec learns by plain SGD, 0.025 falling linearly, instead of Adam 0.01, from both sides of a window;
* LINE learns by SGD, 0.05 falling linearly, and its rows are scaled to length 1 for each order; DGL's SGD of 0.2 has a
  Laplacian term instead.

The split is by species, so that an embedding of the graph hardly reaches from training to test proteins: the published
node2vec row is below that of the MLP on edge features alone.
"""

import sys

from graph_emb.evaluate.mlp import MLPConfig
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.line import LineConfig
from graph_emb.ogb.recipes import LineEmbedding, NodeRecipe, WalkEmbedding
from graph_emb.ogb.script import Script, plain_graph

# PyG's context of 20 nodes: the start and the 19 after it, all alike.
NODE2VEC = WalkEmbedding(
    SkipGramConfig(
        window=19,
        window_weighting="uniform",
        num_negatives=1,
        negative_power=0.0,
        tables=1,
        lr=0.025,
        epochs=1,
    ),
    walk_length=80,
)
# DGL's examples/pytorch/ogb/line: both orders, 64 numbers each.
LINE = LineEmbedding(LineConfig(dim=128, order="both", num_negatives=1), draws_per_edge=15)
MLP = MLPConfig(batch_norm=False, epochs=1000, eval_every=5)

SCRIPT = Script(
    file="examples/ogb/proteins.py",
    dataset="ogbn-proteins",
    recipes={
        "node2vec": NodeRecipe(NODE2VEC, MLP, features="raw"),
        "line": NodeRecipe(LINE, MLP, features="raw"),
    },
    description=__doc__,
    load=plain_graph("ogbn-proteins"),
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

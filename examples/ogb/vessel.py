"""ogbl-vessel: matrix factorisation, or node2vec with coordinates, then OGB's link predictor; ROC-AUC.

    python examples/ogb/vessel.py --model mf --root data --out runs/ogbl-vessel

Nodes are branching points of blood vessels with coordinates; negatives of every part, training too, were drawn near
their edges and come with the data. Recipes: mf.py, and node2vec.py under mlp.py (4 layers of 256, Adam 0.001), of OGB's
examples/linkproppred/vessel; the coordinates stand beside the embedding, each divided by its length over all nodes.
What differs from the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as OGB's scripts do;
* OGB's mlp.py keeps one Adam over its 10 runs; here each seed has its own;
* node2vec learns by plain SGD, 0.025 falling linearly; OGB's sparse Adam of 1e-6 leaves the rows almost as they were
  drawn. It has no published row under the MLP; the nearest is node2vec under a GCN;
* the loss is taken on logits: log(sigmoid + 1e-15) saturates;
* the rows of matrix factorisation learn by sparse Adam: rows outside a batch keep still.

A matrix factorisation sees no coordinates; its published ROC-AUC is that of a coin.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-vessel", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

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

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbn-proteins", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

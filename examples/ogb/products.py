"""ogbn-products: node2vec or LINE and the features of a product, then OGB's MLP; accuracy.

    python examples/ogb/products.py --root data --out runs/ogbn-products

Recipe: node2vec.py under mlp.py (3 layers of 256 without batch norm or dropout, Adam 0.01, 300 epochs) of OGB's
examples/nodeproppred/products, which reads the 100 features of a product beside the embedding. ``line`` is DGL's
examples/pytorch/ogb/line, 3,000 million samples with 1 negative, under the same MLP. What differs from the published
recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published row did;
* node2vec learns by plain SGD, 0.025 falling linearly, instead of sparse Adam 0.01, from both sides of a window;
* LINE learns by SGD, 0.05 falling linearly, and its rows are scaled to length 1 for each order; DGL's SGD of 0.2 has a
  Laplacian term instead.

The real set has 2,449,029 products and 62 million edges; the table of 128 columns is 1.2 GiB.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbn-products", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

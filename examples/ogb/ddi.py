"""ogbl-ddi: DeepWalk, node2vec, matrix factorisation or GraphSAGE with two losses, and OGB's predictor; Hits@20.

    python examples/ogb/ddi.py --model deepwalk --root ../shared/data --out runs/ogbl-ddi

Recipes: DeepWalk of DGL's examples/pytorch/ogb/deepwalk, node2vec.py and mf.py of OGB's examples/linkproppred/ddi, all
under OGB's mlp.py: the element-wise product of two rows, 3 layers of 256, dropout 0.5, Adam 0.01, 65,536 edges and as
many random non-edges a step. ``sage`` is
GraphSAGE of OGB's gnn.py --use_sage: rows of 256 numbers that learn with 2 layers of 256 and a predictor of 2 layers,
every step over the whole graph; on a GPU with --device cuda. Its test value swings from one evaluation to the next;
--set model.ema_decay=0.8 judges an average of the weights over the epochs instead.
``pairwise`` is PLNLP (zhitao-wang/PLNLP, main.py with its README's settings): the same network of 512 numbers, and of
each edge the square of 1 - (its score - that of a non-edge), of three non-edges; it wants a GPU.

What differs from the published recipes:

* the embedding is trained again for every seed; --freeze-embedding keeps one, as the published rows did;
* the loss is taken on logits: log(sigmoid + 1e-15) saturates;
* non-edges are drawn with replacement;
* DeepWalk learns by plain SGD, 0.05 falling linearly, instead of row-wise Adagrad 0.1, and the predictor sees the sum
  of token and context rows instead of token rows that a Laplacian term pulls towards their neighbours' context rows;
  its parameters count two tables (1,191,425), DGL also counts its work buffers (1,543,913);
* node2vec is DeepWalk's recipe with q = 0.25, instead of one table, p = q = 1, windows of 20 nodes, sparse Adam 0.01 in
  100 epochs, and 200 epochs of the predictor: rows as published had a lower validation value;
* ``pairwise`` has no ReLU after the last layer of the network, no dropout of the product of two rows, a mean of the
  squares where PLNLP has their sum, non-edges drawn in every step instead of every epoch, and norms of at most 2 of the
  rows, the network and the predictor each;
* the rows of matrix factorisation learn by sparse Adam, which at this batch size touches all of them, begin with a
  standard deviation of 0.1 instead of 1 (0.03, 0.3 and 1, and a rate of 0.001, had lower validation values), and learn
  for 100 epochs.

On processors that multiply bfloat16, `--set predictor.precision=bfloat16` about halves the time of an epoch.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-ddi", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

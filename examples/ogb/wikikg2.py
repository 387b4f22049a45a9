"""ogbl-wikikg2: TransE, DistMult, ComplEx or RotatE; MRR among 500 given negatives of each side.

    python examples/ogb/wikikg2.py --model transe --root data --out runs/ogbl-wikikg2

Recipe: run.py and examples.sh of OGB's examples/linkproppred/wikikg2 in its larger size: rows of 500 numbers, 200,000
steps of 512 triples, self-adversarial loss of 128 negatives, triples weighed down by how often their pairs occur. A tie
counts half in a rank; --set model.dim=100 is the smaller size. What differs from the published recipe:

* 6 epochs, 189,000 steps; Adam's learning rate falls linearly, where OGB divides it by 10 at half of the steps;
* Adam is sparse: rows outside a step keep still;
* the 128 negatives are shared by the 128 triples of a chunk, where each triple of OGB's has its own;
* negatives that make a training triple true are left out;
* first rows of DistMult and ComplEx are normal with OGB's variance, which is uniform in +-(500 + 2) / 500; the cubic
  penalty is a mean over a step's triples instead of a sum over the tables;
* the epoch is the best on 2,000 validation triples; OGB takes the last one.

The real set has 2,500,604 entities: a table of 500 columns is 4.7 GiB, and Adam's state is twice that.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-wikikg2", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

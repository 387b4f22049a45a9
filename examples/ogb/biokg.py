"""ogbl-biokg: TransE, DistMult, ComplEx or RotatE; MRR among 500 given negatives of each side.

    python examples/ogb/biokg.py --model transe --root data --out runs/ogbl-biokg

Recipe: run.py and examples.sh of OGB's examples/linkproppred/biokg: rows of 2,000 numbers, 300,000 steps of 512
triples, self-adversarial loss of 128 negatives, triples weighed down by how often their pairs occur. A tie counts half
in a rank. What differs from the published recipe:

* 32 epochs, 298,000 steps; Adam's learning rate falls linearly, where OGB divides it by 10 at half of the steps;
* Adam is sparse: rows outside a step keep still;
* the 128 negatives, of the right type as OGB's, are shared by the 128 triples of a chunk, where each of OGB's has its
  own; a chunk in which two types meet shares them out, and a triple counts those of its type;
* negatives that make a training triple true are left out;
* first rows of DistMult and ComplEx are normal with OGB's variance, which is uniform in +-(500 + 2) / 2,000; the cubic
  penalty is a mean over a step's triples instead of a sum over the tables;
* the epoch is the best on 2,000 validation triples; OGB takes the last one.
"""

import sys

from graph_emb.ogb.script import Script

SCRIPT = Script.of("ogbl-biokg", file=__file__, description=__doc__)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())

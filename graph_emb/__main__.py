"""``python -m graph_emb`` is ``graph-emb``."""

import sys

from graph_emb.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

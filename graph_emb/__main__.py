"""``python -m graph_emb`` is ``graph-emb``."""

import sys

if __name__ == "__main__":
    try:
        from graph_emb.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # before main could say so itself
        sys.exit(130)

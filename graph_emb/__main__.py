"""``python -m graph_emb`` is ``graph-emb``."""

import sys

if __name__ == "__main__":
    try:
        from graph_emb.cli.main import main
        from graph_emb.core.terminal import end_at_once

        code = main()
        servers = sys.modules.get("graph_emb.transport.kvstore.rpc")
        if servers is not None and servers.lost_a_peer():
            end_at_once(code)
        sys.exit(code)
    except KeyboardInterrupt:  # before main could say so itself
        sys.exit(130)

"""``python -m graph_emb.run.launch.serve ID HOSTS SERVERS TRAINERS [PARTITION]``: a kvstore server, started by the
launcher; PARTITION is DGL's JSON of the graph that it holds too."""

from __future__ import annotations

import atexit
import gc
import sys


def main() -> int:
    """Serve until every trainer said goodbye; one line and an exit code as of a command where that went wrong."""
    from graph_emb.core.errors import GraphEmbError
    from graph_emb.core.terminal import code_of, end_at_once
    from graph_emb.transport import kvstore

    atexit.register(gc.freeze)  # the end of a process looks for garbage in all of torch and DGL
    number, hosts, num_servers, num_clients, *graph = sys.argv[1:]
    try:
        kvstore.serve(int(number), hosts, int(num_servers), int(num_clients), part_config=graph[0] if graph else None)
    except (GraphEmbError, OSError) as error:
        print(f"graph-emb: server {number}: error: {error}", file=sys.stderr)
        end_at_once(code_of(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())

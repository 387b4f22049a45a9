"""DGL's own distributed classes on our connection: ``DistGraph``, its samplers and its split functions.

``dgl.distributed.initialize`` would ask the servers who has which role, and would wait for ever; here everything is
known from the first handshake, and DGL's waits look after the peers.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graph_emb.transport.kvstore.layout import Hosts
from graph_emb.transport.kvstore.rpc import SLICE_MS
from graph_emb.transport.kvstore.rpc import rpc as dgl_rpc

MODE = "DGL_DIST_MODE"


class DGLContext:
    """Makes this process a client of ``dgl.distributed`` until ``leave``; ``check`` is called while DGL waits."""

    def __init__(self, rank: int, machines: Sequence[int], hosts: Hosts, check: Callable[[], None]) -> None:
        from dgl.distributed import dist_context, kvstore, role

        self._check = check
        self._mode = os.environ.get(MODE)
        os.environ[MODE] = "distributed"
        # DGL numbers trainers machine by machine (role.init_role); node_split relies on it.
        order = sorted(range(len(machines)), key=lambda one: (machines[one], one))
        ranks = {client: position for position, client in enumerate(order)}
        role.CUR_ROLE, role.PER_ROLE_RANK, role.GLOBAL_RANK = "default", {"default": ranks}, dict(ranks)
        with tempfile.TemporaryDirectory() as folder:  # DGL reads hosts from a file only
            ip_config = Path(folder, "ip_config.txt")
            ip_config.write_text(hosts.ip_config(), encoding="utf-8")
            kvstore.init_kvstore(str(ip_config), hosts.servers_per_machine, "default")
        self._receive, self._fast_pull = dgl_rpc.recv_rpc_message, dgl_rpc.fast_pull
        dgl_rpc.recv_rpc_message, dgl_rpc.fast_pull = self._watched_receive, self._watched_pull
        dist_context.set_initialized(True)

    def leave(self) -> None:
        from dgl.distributed import dist_context, kvstore

        dist_context.set_initialized(False)
        kvstore.close_kvstore()
        dgl_rpc.recv_rpc_message, dgl_rpc.fast_pull = self._receive, self._fast_pull
        if self._mode is None:
            os.environ.pop(MODE, None)
        else:
            os.environ[MODE] = self._mode

    def _watched_receive(self, timeout: int = 0) -> Any:
        """DGL's ``recv_rpc_message``, looking at the peers while it waits. A timeout of 0 ms is none."""
        until = time.monotonic() + timeout / 1000 if timeout else None
        while True:
            message = self._receive(SLICE_MS)
            if message is not None:
                return message
            self._check()
            if until is not None and time.monotonic() > until:
                return None

    def _watched_pull(
        self,
        name: str,
        ids: Tensor,
        parts: Tensor,
        service: int,
        machine_count: int,
        group_count: int,
        machine: int,
        client: int,
        local_data: Tensor,
        policy: Any,
    ) -> Tensor:
        """DGL's ``fast_pull``, whose C++ code waits for the dead for ever when rows of other machines are asked."""
        away = parts != machine
        if not bool(away.any()):
            return self._fast_pull(
                name, ids, parts, service, machine_count, group_count, machine, client, local_data, policy
            )
        from dgl.distributed.kvstore import PullRequest

        out = torch.empty((len(ids), *local_data.shape[1:]), dtype=local_data.dtype)
        asked = [(int(part), (parts == part).nonzero().flatten()) for part in parts[away].unique()]
        self._check()
        numbers = dgl_rpc.send_requests_to_machine([(part, PullRequest(name, ids[where])) for part, where in asked])
        here = (~away).nonzero().flatten()
        out[here] = local_data[policy.to_local(ids[here])]
        for (_, where), response in zip(asked, dgl_rpc.recv_responses(numbers), strict=True):
            out[where] = response.data_tensor
        return out

"""Rows of a machine where no trainer runs: their server reads and writes them for a checkpoint."""

from __future__ import annotations

from torch import Tensor

from graph_emb.graph.partition_book import RangeBook
from graph_emb.transport.kvstore.session import Exchange, Session
from graph_emb.transport.kvstore.trainer_table import TrainerTable
from graph_emb.transport.rows import ShardRows, TableRows


class FarRows:
    """Rows of one server; see ``graph_emb.transport.rows.TableRows``.

    Args:
        exchange: The way to the servers.
        server: Who owns the rows.
        table: The table.
    """

    def __init__(self, exchange: Exchange, server: int, table: TrainerTable) -> None:
        bounds = table.book.bounds.tolist()
        self.first_id, self.num_rows = bounds[server], bounds[server + 1] - bounds[server]
        self._exchange, self._server = exchange, server
        self._named = (table.key, table.optimizers if table.attached else 0)

    def read(self, column: str, start: int, stop: int) -> Tensor:
        """Copies of rows [start, stop) of a column."""
        wanted = (*self._named, column, self.first_id + start, self.first_id + stop)
        return self._exchange.ask([(self._server, "read_column", wanted, ())])[0].tensors[0]

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite distinct rows of a column."""
        call = (self._server, "write_column", (*self._named, column), (rows + self.first_id, values))
        self._exchange.ask([call])

    def memory(self, column: str) -> Tensor | None:
        """None: the rows are elsewhere."""
        return None


def shares(table: TrainerTable, exchange: Exchange, session: Session) -> list[TableRows]:
    """What a trainer saves and loads: its part of its machine's rows; machines without trainers go round."""
    rank, machines = session.rank, list(session.machines)
    here = [trainer for trainer, machine in enumerate(machines) if machine == session.machine]
    low, high = RangeBook.even(table.high - table.low, len(here)).bounds[here.index(rank) :][:2].tolist()
    found: list[TableRows] = [ShardRows(table.shard.narrow(low, high))]
    for machine in sorted(set(range(session.hosts.num_machines)) - set(machines)):
        if machine % len(machines) == rank:
            found += [FarRows(exchange, server, table) for server in session.hosts.servers_of(machine)]
    return found

"""Steps in blocks that every layout computes one by one, so that any number of ranks finds the same bits.

A sum of floating-point numbers depends on its order, and a matrix product's order on its shape. A block's nodes,
neighbourhood, dropout and products follow from the seed, the step and the block alone; what blocks find is added in the
order of blocks (networks), or exactly (tables: ``graph_emb.optim.apply.exact_sums``; losses and norms: ``math.fsum``).
"""

# K blocks of a step, W ranks, P numbers of all networks.

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from graph_emb.core.errors import ConfigError
from graph_emb.transport.process_group import ProcessGroup


class StepBlocks:
    """The blocks of each step that this rank computes: K / W of them, side by side.

    Args:
        num_blocks: K, at least 2, which W divides: see ``GNNConfig.check_trainers``.
        group: The ranks; None: one.
        seed: Of dropout, any integer.
    Attributes:
        own: The numbers of this rank's blocks.
        current: The one that is computed.
        generators: Random states that dropout draws from, which begin anew with each block.
    """

    def __init__(self, num_blocks: int, group: ProcessGroup | None, seed: int) -> None:
        rank, num_ranks = (0, 1) if group is None else (group.rank, group.world_size)
        each = num_blocks // num_ranks
        self.own = range(rank * each, (rank + 1) * each)
        self.current = self.own.start
        self.generators = [torch.default_generator]
        self._num, self._group, self._seed = num_blocks, group, seed % (1 << 64)
        self._gradients: list[Tensor] = []

    def slices(self, num_items: int) -> list[slice]:
        """Positions of each own block among a step's items."""
        return [slice(k * num_items // self._num, (k + 1) * num_items // self._num) for k in self.own]

    @contextmanager
    def computing(self, block: int, step: tuple[int, int], networks: Sequence[nn.Module]) -> Iterator[None]:
        """Within it a block of a step is computed; its gradients of the networks are then kept apart.

        Args:
            block: One of ``own``, in their order.
            step: Epoch, and number of the step in it.
            networks: All that the step trains, without gradients.
        """
        self.current = block
        seeds = np.random.SeedSequence([self._seed, *step, block]).generate_state(len(self.generators), np.uint64)
        for generator, own_seed in zip(self.generators, seeds.tolist(), strict=True):
            generator.manual_seed(own_seed)
        yield
        self._gradients.append(_taken(networks))

    def sum_gradients(self, networks: Sequence[nn.Module]) -> None:
        """Give the networks the gradients of all blocks, added in the order of blocks. Every rank calls it."""
        own, self._gradients = torch.stack(self._gradients), []
        if self._group is None or self._group.world_size == 1:
            _give(_in_order(own), networks)
            return
        group, what, (each, size) = self._group, "gradients of blocks", own.shape
        cuts = [size * rank // group.world_size for rank in range(group.world_size + 1)]
        sizes = [high - low for low, high in pairwise(cuts)]  # each rank adds a share of the numbers
        send = torch.cat([share.flatten() for share in own.split(sizes, dim=1)])
        mine = sizes[group.rank]
        came = group.exchange(send, [each * n for n in sizes], [each * mine] * len(sizes), what)
        total = _in_order(came.view(self._num, mine))
        _give(group.exchange(total.repeat(len(sizes)), [mine] * len(sizes), sizes, what), networks)

    def total(self, values: Sequence[float]) -> float:
        """The sum of all ranks' values, rounded once, so in any order. Every rank calls it."""
        if self._group is None:
            return math.fsum(values)
        told = self._group.gather_objects(list(values), "sums of blocks")
        return math.fsum(value for theirs in told for value in theirs)


def check_network(network: nn.Module, num_blocks: int) -> None:
    """Raise a ConfigError where a layer computes a node from the others of its batch."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            raise ConfigError(
                f"{type(module).__name__} normalises by the nodes that are computed together, and parallel.blocks = "
                f"{num_blocks} computes them apart; take LayerNorm, or parallel.blocks = 1"
            )


def _taken(networks: Sequence[nn.Module]) -> Tensor:
    """Gradients as one float64 vector (P,), then for each parameter whether it had one; they are cleared."""
    pieces, met = [], []
    for network in networks:
        for parameter in network.parameters():
            grad, parameter.grad = parameter.grad, None
            met.append(float(grad is not None))
            pieces.append(torch.zeros(parameter.numel(), dtype=torch.float64) if grad is None else grad.flatten())
    return torch.cat([piece.to("cpu", torch.float64) for piece in pieces] + [torch.tensor(met, dtype=torch.float64)])


def _give(vector: Tensor, networks: Sequence[nn.Module]) -> None:
    """The reverse of ``_taken``, of all blocks: what none of them met stays without a gradient."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    *pieces, met = vector.split([*(parameter.numel() for parameter in parameters), len(parameters)])
    for parameter, piece, times in zip(parameters, pieces, met.tolist(), strict=True):
        parameter.grad = piece.view(parameter.shape).to(parameter.device, parameter.dtype) if times else None


def _in_order(blocks: Tensor) -> Tensor:
    """The sum of rows (K, P), one after the other, shape (P,)."""
    total = blocks[0].clone()
    for block in blocks[1:]:
        total += block
    return total

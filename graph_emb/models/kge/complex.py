"""ComplEx: DistMult over complex numbers, which tells a relation's two directions apart."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graph_emb.models.kge.comparisons import DOT, Comparison
from graph_emb.models.kge.complex_rows import complex_moduli, times, times_conjugate
from graph_emb.models.kge.scorer import check_dim
from graph_emb.table.initializers import Initializer, Normal


@dataclass(frozen=True)
class ComplEx:
    """``s(h, r, t) = Re(sum_m h_m r_m conj(t_m))`` (Trouillon et al., ICML 2016).

    Rows of entities and relations hold D / 2 complex numbers: real parts, then imaginary ones.

    Args:
        dim: D, even.
        init_std: First rows are normal around 0 with this standard deviation.
    """

    dim: int
    init_std: float = 0.1

    def __post_init__(self) -> None:
        check_dim("complex", self.dim, 2)

    @property
    def comparison(self) -> Comparison:
        """The dot product."""
        return DOT

    @property
    def relation_dim(self) -> int:
        """W = D."""
        return self.dim

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``h * r``: its real dot product with t is the real part of ``h r conj(t)``."""
        return times(head, relation)

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``t * conj(r)``: its real dot product with h is the real part of ``conj(t conj(r)) h``."""
        return times_conjugate(tail, relation)

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``Scorer.moduli``."""
        return complex_moduli(rows)

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``Scorer.initializers``."""
        return Normal(0.0, self.init_std, seed=seed), Normal(0.0, self.init_std, seed=seed + 1)

"""Named conventions of other systems: treatment of duplicates, Adam's clock, the place of its eps.

A preset never changes a number that the caller gave (lr, eps, betas); an explicit option wins over the preset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.optim.adam import CHOICES, Clock, EpsPlacement
from graph_emb.optim.merge import Merge, check_merge


@dataclass(frozen=True)
class Convention:
    """The three choices on which the systems differ.

    Args:
        merge: ``"sum"`` or ``"mean"`` over the duplicates of an id.
        clock: Adam's ``t``: ``"row"`` or ``"global"``.
        eps_placement: Adam's eps: ``"corrected"`` or ``"raw"``.
    """

    merge: Merge
    clock: Clock
    eps_placement: EpsPlacement


PRESETS: dict[str, Convention] = {
    "torch": Convention("sum", "global", "raw"),
    "dgl-1.x": Convention("mean", "row", "corrected"),
    "dgl-0.5": Convention("sum", "row", "corrected"),  # row-wise Adagrad only; squares before it sums
    "fbgemm": Convention("sum", "global", "corrected"),
}


def convention(compat: str, merge: str | None = None, bias_correction: str | None = None) -> Convention:
    """A preset with the caller's explicit options in place of its own.

    Raises:
        ConfigError: an unknown preset or option.
    """
    if compat not in PRESETS:
        raise unknown_name("compat", compat, PRESETS)
    chosen = PRESETS[compat]
    if merge is not None:
        check_merge(merge)
        if compat == "dgl-0.5":
            raise ConfigError(
                f"compat='dgl-0.5' squares every occurrence by itself; merge={merge!r} cannot be honoured"
            )
        chosen = replace(chosen, merge=merge)  # type: ignore[arg-type]
    if bias_correction is not None:
        if bias_correction not in CHOICES["clock"]:
            raise unknown_name("bias_correction", bias_correction, CHOICES["clock"])
        chosen = replace(chosen, clock=bias_correction)  # type: ignore[arg-type]
    return chosen

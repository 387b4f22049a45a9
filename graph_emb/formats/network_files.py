"""The trained network of a run in a file of its folder: tensors, and what it takes to build it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_emb.core.errors import DataError
from graph_emb.core.paths import user_path
from graph_emb.core.tensor_files import open_tensors, write_tensors

if TYPE_CHECKING:  # it takes a second to import
    from torch import Tensor, nn

NETWORK = "network.safetensors"


@dataclass(frozen=True, eq=False)
class KeptNetwork:
    """A network as it was when its training ended.

    Attributes:
        tensors: Of its ``state_dict``, on the CPU.
        about: For JSON: ``epoch``, after which it is as it is, and what its model needs to build it.
    """

    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]

    @classmethod
    def of(cls, network: nn.Module, about: Mapping[str, Any]) -> KeptNetwork:
        """A copy of the network's tensors."""
        return cls({name: own.detach().cpu().clone() for name, own in network.state_dict().items()}, about)

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(own.numel() for own in self.tensors.values())

    def load_into(self, network: nn.Module) -> nn.Module:
        """Give a network, built from ``about``, these values; it is ready to evaluate.

        Raises:
            DataError: its tensors are others: the settings of the run were changed.
        """
        try:
            network.load_state_dict(dict(self.tensors))
        except RuntimeError as error:
            lines = "; ".join(line.strip() for line in str(error).splitlines()[1:])
            raise DataError(f"{NETWORK} is of other settings than config.yaml of its run: {lines}") from error
        return network.eval()

    def save(self, folder: Path) -> None:
        """Write it into the folder of a run."""
        write_tensors(folder / NETWORK, self.tensors, self.about)


def load_network(folder: str | Path) -> KeptNetwork | None:
    """The network in the folder of a run; None where it keeps none.

    Raises:
        DataError: the file is damaged.
    """
    path = user_path(folder) / NETWORK
    if not path.is_file():
        return None
    file, about = open_tensors(path, "network")
    return KeptNetwork({name: file.get_tensor(name) for name in file.keys()}, about)  # noqa: SIM118

"""Whether all ranks of a job see one folder, asked before they train."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from graph_emb.core.errors import ConfigError
from graph_emb.transport.process_group import ProcessGroup


def check_shared(group: ProcessGroup, folder: Path) -> None:
    """Raise unless every rank sees, and may write, the place where the first one makes a folder. Every rank calls it.

    The first rank writes an empty file of a random name where the folder is, or into the nearest folder above it that
    exists; the others look for it, and it is removed again.

    Raises:
        ConfigError: on all ranks, with the hosts that do not see it or may not write.
        PeerError: a process is gone.
    """
    what = f"looking for the folder {folder}"
    token, said = None, ""
    if group.rank == 0:
        place = next(path for path in (folder, *folder.parents) if path.is_dir())
        token = place / f".{folder.name}.{secrets.token_hex(8)}"
        try:
            token.touch(exist_ok=False)
        except OSError as error:
            token, said = None, f"{socket.gethostname()} (rank 0) cannot write {place}: {error.strerror}"
    try:
        path, *_ = group.gather_objects(str(token) if token is not None else "", what)
        if group.rank > 0 and path:
            if not os.access(Path(path).parent, os.W_OK):
                said = f"{socket.gethostname()} (rank {group.rank}) cannot write {Path(path).parent}"
            elif not os.path.exists(path):
                said = f"{socket.gethostname()} (rank {group.rank}) has another folder there"
        wrong = [words for words in group.gather_objects(said, what) if words]
    finally:
        if token is not None:
            token.unlink(missing_ok=True)
    if wrong:
        raise ConfigError(
            f"checkpoints need a folder that all machines can write; of {folder}: {'; '.join(wrong)}; give an --out on "
            "a disk that they share"
        )

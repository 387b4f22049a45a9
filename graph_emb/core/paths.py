"""Places that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from graph_emb.core.errors import ConfigError


def user_path(place: str | os.PathLike[str]) -> Path:
    """A place with the home folder that a leading ``~`` or ``~user`` stands for.

    Raises:
        ConfigError: there is no such user, or, as in some containers, this one has no home.
    """
    try:
        return Path(place).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{os.fspath(place)}: this user has no home folder; write the path without ~") from error

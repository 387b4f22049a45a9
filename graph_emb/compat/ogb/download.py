"""Fetching an OGB data set: only when asked, whole or not at all."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from graph_emb.compat.ogb.catalog import Metadata
from graph_emb.core.errors import DataError
from graph_emb.core.hidden import scratch_folder

CHUNK = 1 << 20
TIMEOUT_S = 60


def fetch(meta: Metadata, root: Path) -> Path:
    """Download and unpack a data set into `root`; its folder appears only when it is complete.

    Raises:
        DataError: the server cannot be reached, breaks off, or sends something else.
        OSError: the disk is full or the root cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    with scratch_folder(root / meta.folder) as scratch:
        archive, unpacked = scratch / "data.zip", scratch / "unpacked"
        _copy(meta, archive)
        try:
            with zipfile.ZipFile(archive) as file:
                file.extractall(unpacked)
        except zipfile.BadZipFile as error:
            raise DataError(f"{meta.name}: {meta.url} sent no zip file; try again later") from error
        content = unpacked / meta.download_name
        if not (content / meta.raw_file).exists():
            raise DataError(f"{meta.name}: the file from {meta.url} has no {meta.download_name}/{meta.raw_file}")
        os.replace(content, root / meta.folder)
    return root / meta.folder


def _copy(meta: Metadata, archive: Path) -> None:
    from tqdm import tqdm

    try:
        # The address is OGB's own, from its master.csv.
        with urllib.request.urlopen(meta.url, timeout=TIMEOUT_S) as answer:
            expected = int(answer.headers.get("Content-Length") or 0)
            with (
                archive.open("wb") as file,
                tqdm.wrapattr(answer, "read", total=expected or None, desc=meta.name) as source,
            ):
                shutil.copyfileobj(source, file, CHUNK)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DataError(f"{meta.name}: cannot download {meta.url} ({error}); check the network") from error
    received = archive.stat().st_size
    if expected and received != expected:
        raise DataError(f"{meta.name}: {meta.url} broke off after {received} of {expected} bytes; try again")

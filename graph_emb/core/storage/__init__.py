"""Write hidden, sync, rename, checksum, and clean up after killed processes: the one way to the disk."""

from graph_emb.core.storage.hidden import (
    MARK,
    HiddenFolder,
    left_behind,
    remove_folder,
    remove_left_behind,
    scratch_folder,
)
from graph_emb.core.storage.output import (
    OutputFile,
    check_space,
    named,
    sha256_of,
    size_text,
    write_file,
    xxh64_of,
)
from graph_emb.core.storage.pending import (
    PendingFiles,
    PendingFolder,
    foreign_file,
    replace_json,
    replace_text,
    replacing,
)

__all__ = [
    "MARK",
    "HiddenFolder",
    "OutputFile",
    "PendingFiles",
    "PendingFolder",
    "check_space",
    "foreign_file",
    "left_behind",
    "named",
    "remove_folder",
    "remove_left_behind",
    "replace_json",
    "replace_text",
    "replacing",
    "scratch_folder",
    "sha256_of",
    "size_text",
    "write_file",
    "xxh64_of",
]

"""Write hidden, sync, rename, checksum, and clean up after killed processes: the one way to the disk."""

from graph_emb.core.storage.hidden import MARK as MARK
from graph_emb.core.storage.hidden import HiddenFolder as HiddenFolder
from graph_emb.core.storage.hidden import left_behind as left_behind
from graph_emb.core.storage.hidden import remove_folder as remove_folder
from graph_emb.core.storage.hidden import remove_left_behind as remove_left_behind
from graph_emb.core.storage.hidden import scratch_folder as scratch_folder
from graph_emb.core.storage.output import OutputFile as OutputFile
from graph_emb.core.storage.output import check_space as check_space
from graph_emb.core.storage.output import named as named
from graph_emb.core.storage.output import sha256_of as sha256_of
from graph_emb.core.storage.output import size_text as size_text
from graph_emb.core.storage.output import write_file as write_file
from graph_emb.core.storage.output import xxh64_of as xxh64_of
from graph_emb.core.storage.pending import PendingFiles as PendingFiles
from graph_emb.core.storage.pending import PendingFolder as PendingFolder
from graph_emb.core.storage.pending import foreign_file as foreign_file
from graph_emb.core.storage.pending import replace_json as replace_json
from graph_emb.core.storage.pending import replace_text as replace_text
from graph_emb.core.storage.pending import replacing as replacing

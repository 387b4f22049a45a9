"""A process that takes a rank of a job without the job's token runs nothing and learns nothing.

What ranks told each other once was pickled, and the rendezvous asked for no token: a process of the same machine that
joined as rank 1 ran code in rank 0.
"""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graph_emb.core.errors import DataError, PeerError
from graph_emb.core.json_codec import pack
from graph_emb.transport.guard import TOKEN_VARIABLE, new_token
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks

pytestmark = pytest.mark.dist


class _Bomb:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def _join_as_thief() -> None:
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))
    store = dist.PrefixStore("graph_emb/1", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))


def _tell(message: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(message) for _ in range(2)]
    dist.all_gather(found, message)
    return found


def _tell_bytes(word: bytes) -> None:
    sizes = _tell(torch.tensor([len(word)]))
    message = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    message[: len(word)] = torch.frombuffer(bytearray(word), dtype=torch.uint8)
    _tell(message)


def _rob_a_job_with_a_token(token: str) -> str:
    if os.environ["RANK"] == "1":
        _join_as_thief()
        try:
            _tell(torch.zeros(32, dtype=torch.uint8))
            heard = _tell(torch.zeros(32, dtype=torch.uint8))  # a guess, and the proof of rank 0
            return "token" if token.encode() in heard[0].numpy().tobytes() else "nothing"
        finally:
            dist.destroy_process_group()
    os.environ[TOKEN_VARIABLE] = token
    try:
        ProcessGroup(timeout=60)
    except PeerError as error:
        return str(error)
    finally:
        del os.environ[TOKEN_VARIABLE]
    return "joined"


def test_a_thief_without_the_token_is_named_before_another_word(ranks: Ranks) -> None:
    honest, thief = ranks.run(_rob_a_job_with_a_token, 2, new_token())
    assert "the process that joined as rank 1 does not know the job's token" in honest
    assert thief == "nothing"


def _rob_a_job_without_a_token(path: str) -> str:
    if os.environ["RANK"] == "1":
        _join_as_thief()
        try:
            _tell_bytes(pack(None, "init"))  # no memory to share
            dist.new_group(backend="gloo")  # for what goes to lower ranks
            _tell_bytes(pickle.dumps(_Bomb(path)))
            return "sent"
        finally:
            dist.destroy_process_group()
    group = ProcessGroup(timeout=60, shared_memory=False)
    try:
        group.gather_objects("mine", "test")
    except DataError as error:
        return str(error)
    finally:
        group.close()
    return "taken"


def test_a_pickle_of_a_peer_is_an_error_and_runs_nothing(ranks: Ranks, tmp_path: Path) -> None:
    honest, thief = ranks.run(_rob_a_job_without_a_token, 2, str(tmp_path / "bomb"))
    assert thief == "sent"
    assert "cannot be read" in honest
    assert not (tmp_path / "bomb").exists()


def _with_two_tokens(tokens: list[str]) -> str:
    os.environ[TOKEN_VARIABLE] = tokens[int(os.environ["RANK"])]
    try:
        group = ProcessGroup(timeout=60)
        told = group.gather_objects(group.rank, "test")
        group.close()
        return str(told)
    except PeerError as error:
        return str(error)
    finally:
        del os.environ[TOKEN_VARIABLE]


def test_ranks_with_one_token_meet_and_those_with_two_do_not(ranks: Ranks) -> None:
    token = new_token()
    assert ranks.run(_with_two_tokens, 2, [token, token]) == ["[0, 1]"] * 2
    for answer in ranks.run(_with_two_tokens, 2, [token, new_token()]):
        assert "does not know the job's token" in answer

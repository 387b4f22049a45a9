"""torch.distributed behind five calls, with errors that name the processes that are gone.

Works with a group that the program made already, under torchrun, and alone.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from graph_emb.core.errors import ConfigError, GraphEmbError, ModeError, PeerError, unknown_name
from graph_emb.core.json_codec import pack, unpack
from graph_emb.graph.partition_book import Rank
from graph_emb.transport import job
from graph_emb.transport.guard import NONCE, TOKEN_VARIABLE, check_address, token_proof
from graph_emb.transport.shm_all_to_all import SharedAllToAll, SharedExchange, room_for
from graph_emb.transport.traffic import LinkCounts

ROLL_CALL = 5.0
"""Seconds that a survivor waits for the others to say that they live, before it names the silent ones."""
SHARED_VARIABLE = "GRAPH_EMB_SHARED_MEMORY"
_STORE_NAME = "graph_emb/store"
_joined: set[bytes] = set()


class ProcessGroup:
    """The processes that share tables.

    Args:
        backend: ``"gloo"``, ``"nccl"`` or None: gloo for CPU tensors, and nccl for CUDA tensors where there are any.
        timeout: Seconds after which a call that a peer does not answer raises.
        shared_memory: Exchange through memory where all ranks are on one machine with x86 cores; False takes sockets
            there too, and so does $GRAPH_EMB_SHARED_MEMORY=0, whatever the program says. One rank of either is enough.
    Attributes:
        rank, world_size: This process, and how many there are.
        local_rank: This process among those of its machine: the number of its GPU.
        same_memory: Whether all processes are on one machine and see each other's memory.
        failed: The error that left the ranks out of step; empty while they are in step.
        link: What crossed between this process and the others, and how long it waited for them.
        num_calls, last_calls: How many joint calls this process began (``collective.JointCalls``), and the last ones.
    """

    def __init__(self, backend: str | None = None, timeout: float = 300.0, shared_memory: bool = True) -> None:
        if not dist.is_available():
            raise ModeError("this torch was built without torch.distributed; collective mode needs it")
        if not 0 < timeout < math.inf:
            raise ConfigError(f"timeout={timeout!r} must be a positive number of seconds, and finite")
        self.timeout = timedelta(seconds=timeout)
        known = [name for name in dist.Backend.backend_list if name != dist.Backend.UNDEFINED]
        for name in [] if backend is None else backend.split(","):  # "nccl", or each of "cpu:gloo,cuda:nccl"
            if name.rpartition(":")[2] not in known:
                raise unknown_name("backend", name, known)
        chosen = backend or ("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self.store: Any = None
        self._made_default = not dist.is_initialized()
        if self._made_default:
            self.store = self._start(chosen)
            self._group: Any = dist.group.WORLD
        else:  # a group of our own: our timeout, and no mixing with the program's own calls
            with contextlib.suppress(AttributeError):  # private in torch; without it errors name no rank
                self.store = dist.distributed_c10d._get_default_store()
                self._come_together()
            self._group = dist.new_group(backend=chosen, timeout=self.timeout)
        self.rank = Rank(dist.get_rank(self._group))
        self.world_size = dist.get_world_size(self._group)
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.failed, self.num_calls, self.link = "", 0, LinkCounts()
        self.last_calls: deque[str] = deque(maxlen=64)
        self._shared: SharedExchange | None = None
        self._down: Any = None  # a second gloo, for what goes to lower ranks
        token = os.environ.get(TOKEN_VARIABLE)
        if token and self.world_size > 1:  # before any other word
            try:
                self._prove_token(token)
            except BaseException:
                self.close()
                raise
        if self.world_size > 1:
            wanted = shared_memory and os.environ.get(SHARED_VARIABLE) != "0"
            gather = partial(self.gather_objects, what="init")
            try:
                self._shared = SharedExchange.open(self.rank, self.world_size, gather, timeout, wanted=wanted)
            except BaseException:
                self.close()
                raise
        self.same_memory = self._shared is not None
        if self.world_size > 1 and not self.same_memory and "gloo" in chosen:
            try:
                with self._translated("init"):
                    self._down = dist.new_group(backend="gloo", timeout=self.timeout)
            except BaseException:
                self.close()
                raise
        if self._shared is not None:  # ranks of one machine call the shared memory with no layer in between
            shared = SharedAllToAll(self._shared, self)
            self.exchange = shared.exchange  # type: ignore[method-assign]
            self.exchange_into = shared.exchange_into  # type: ignore[method-assign]
            self.exchange_pieces = shared.exchange_pieces  # type: ignore[method-assign]
            self.exchange_numbers = shared.exchange_numbers  # type: ignore[method-assign]
            self.outgoing = shared.outgoing  # type: ignore[method-assign]

    def _start(self, backend: str) -> Any:
        absent = [word for word in job.WORDS if word not in os.environ]
        if len(absent) == len(job.WORDS):
            job.check_alone("mode 'collective' without a launcher's variables")
            store: Any = dist.HashStore()
            dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=self.timeout)
            return store
        if absent:
            raise ModeError(
                f"collective mode: {', '.join(absent)} not set; start the program with torchrun or with "
                "graph-emb train --trainers N --mode collective"
            )
        choose_interface(os.environ["MASTER_ADDR"])
        try:
            store, rank, world_size = _rendezvous(self.timeout)
            store = dist.PrefixStore(f"graph_emb/{store.add(f'graph_emb/joins/{rank}', 1)}", store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=self.timeout)
        except GraphEmbError:
            raise
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise PeerError(
                f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: the job did not come together at {where} "
                f"within {self.timeout.total_seconds():g} s: {_first_line(error)}"
            ) from error
        return store

    def _come_together(self) -> None:
        """Wait until every rank of the program's group is here: torch's ``new_group`` waits for its own 300 s.

        Raises:
            PeerError: ranks did not come in time.
        """
        rank, ranks = dist.get_rank(), range(dist.get_world_size())
        time_of_rank = self.store.add(f"graph_emb/joins/{rank}", 1)
        here = [f"graph_emb/joins/{time_of_rank}/{one}" for one in ranks]
        self.store.set(here[rank], "")
        try:
            self.store.wait(here, self.timeout)
        except RuntimeError as error:
            absent = [one for one in ranks if not self.store.check([here[one]])]
            raise PeerError(
                f"rank {rank} of {len(ranks)}: rank {', '.join(map(job.named, absent))} did not begin the mode within "
                f"{self.timeout.total_seconds():g} s"
            ) from error

    def exchange(self, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int], what: str) -> Tensor:
        """Send pieces of ``send`` to the ranks in order and receive theirs.

        Args:
            send: Pieces one after the other along the first axis.
            to_send, to_receive: Rows for and from each rank, (W,).
            what: The words with which an error names the call.
        Returns:
            The received pieces, rank after rank, with the other axes of ``send``.
        Raises:
            PeerError: a process is gone or did not answer in time.
        """
        out = send.new_empty((sum(to_receive), *send.shape[1:]))
        self.exchange_into(out, send, to_send, to_receive, what)
        return out

    def exchange_into(
        self, out: Tensor, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int], what: str
    ) -> None:
        """``exchange`` into memory that the caller holds, contiguous."""
        self.start_exchange(out, send, to_send, to_receive, what)()

    def exchange_large(
        self, out: Tensor, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int], what: str
    ) -> None:
        """``exchange_into`` of megabytes, in both directions at once; of less it takes longer."""
        if self._down is None:
            self.exchange_into(out, send, to_send, to_receive, what)
        else:
            self.start_exchange(out, send, to_send, to_receive, what, large=True)()

    def _begun(
        self, out: Tensor, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int], large: bool
    ) -> list[Any]:
        """What an exchange waits for; of a large one bytes for higher and for lower ranks, by their own connections.

        A connection of gloo's (torch 2.13) reads a message to its end before it writes the next one: it has the speed
        of its link in one direction at a time.
        """
        # Send even when empty: a rank that skips the exchange blocks the others.
        come, go = list(to_receive), list(to_send)
        ways = [(self._group, (out, send, come, go))]
        if large and self._down is not None and send.device.type == "cpu":
            low, high = [0] * (self.rank + 1), [0] * (self.world_size - self.rank - 1)
            above, below = len(out) - sum(come[len(low) :]), sum(go[: self.rank])
            up = out[:above], send[below:], come[: len(low)] + high, low[1:] + go[self.rank :]
            down = out[above:], send[:below], low + come[len(low) :], [*go[: self.rank], 0, *high]
            ways = [(self._group, up), (self._down, down)]
        return [dist.all_to_all_single(*way, group=group, async_op=True) for group, way in ways]

    def count(self, out: Tensor, send: Tensor, to_send: Sequence[int], to_receive: Sequence[int]) -> None:
        """Add an exchange to ``link``; what this rank has for itself does not cross."""
        own = to_send[self.rank] * (send.nbytes // max(1, len(send)))
        self.link.bytes_in += out.nbytes - own
        self.link.bytes_out += send.nbytes - own

    def exchange_numbers(self, numbers: Tensor, what: str, *, large: bool = False) -> Tensor:
        """Tell each rank a row of numbers, (W, K), and hear one from each: how a call of all ranks begins.

        The time that it takes is that until the last rank has come, and ``link`` counts it as waiting.

        Args:
            large: As ``exchange_large``.
        """
        out, ones = torch.empty_like(numbers), [1] * len(numbers)
        with self._waiting(what):
            for work in self._begun(out, numbers, ones, ones, large):
                work.wait()
        return out

    def exchange_pieces(
        self, targets: Sequence[Sequence[Tensor]], send: Tensor, to_send: Sequence[int], what: str
    ) -> None:
        """``exchange`` of bytes, what each rank sends going to memory in several places.

        Args:
            targets: Contiguous memory for the pieces of each rank, (W,).
            send: Shape (bytes,), uint8; a piece begins ``room_for`` the one before it after that one.
            to_send: Bytes for each rank, (W,).
            what: The words with which an error names the call.
        """
        sizes = [[room_for(piece.nbytes) for piece in pieces] for pieces in targets]
        came = self.exchange(send, to_send, [sum(one) for one in sizes], what)
        parts = came.split([size for one in sizes for size in one])
        for piece, part in zip([piece for pieces in targets for piece in pieces], parts, strict=True):
            if len(part):
                piece.copy_(part[: piece.nbytes].view(piece.dtype).view(piece.shape))

    def outgoing(self, like: Tensor, num_rows: int) -> Tensor:
        """Memory for what the next exchange sends, (num_rows, *), of the width, dtype and device of ``like``.

        Between ranks of one machine it is memory that they map, so that the exchange need not copy it.
        """
        return like.new_empty((num_rows, *like.shape[1:]))

    def start_exchange(
        self,
        out: Tensor,
        send: Tensor,
        to_send: Sequence[int],
        to_receive: Sequence[int],
        what: str,
        *,
        large: bool = False,
    ) -> Callable[[], None]:
        """``exchange_into`` in the background, or ``exchange_large``; call what it returns before ``out`` is read or
        ``send`` freed."""
        self.count(out, send, to_send, to_receive)
        with self._translated(what):
            begun = self._begun(out, send, to_send, to_receive, large)

        def wait() -> None:
            with self._translated(what):
                for work in begun:
                    work.wait()

        return wait

    def gather_objects(self, value: Any, what: str, kinds: Sequence[type] = ()) -> list[Any]:
        """One value of every rank, in the order of ranks. Nothing is unpickled: a peer chooses values, never code.

        Args:
            value: Plain values, arrays, and dataclasses of them (``graph_emb.core.json_codec.pack``).
            kinds: The dataclasses that may come back.
        Raises:
            DataError: a peer sent no such value.
            PeerError: a process is gone or did not answer in time.
        """
        message = pack(value, what)
        sizes = [int(size) for size in self._gather_equal(torch.tensor([len(message)]), what)]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        pieces = zip(self._gather_equal(own, what), sizes, strict=True)
        return [unpack(piece[:size].numpy().tobytes(), kinds) for piece, size in pieces]

    def _gather_equal(self, own: Tensor, what: str) -> list[Tensor]:
        """A tensor of the same shape from every rank."""
        found = [torch.empty_like(own) for _ in range(self.world_size)]
        with self._waiting(what):
            dist.all_gather(found, own, group=self._group)
        return found

    def _prove_token(self, token: str) -> None:
        """Show every rank that this process knows the job's token, and learn that they do; the token never travels."""
        what = "proof of the token"
        nonce = torch.frombuffer(bytearray(secrets.token_bytes(NONCE)), dtype=torch.uint8)
        nonces = torch.cat(self._gather_equal(nonce, what)).numpy().tobytes()
        right = [token_proof(token, f"rank {rank}".encode(), nonces, b"") for rank in range(self.world_size)]
        own = torch.frombuffer(bytearray(right[self.rank]), dtype=torch.uint8)
        for rank, proof in enumerate(self._gather_equal(own, what)):
            if not hmac.compare_digest(right[rank], proof.numpy().tobytes()):
                raise PeerError(
                    f"rank {self.rank} of {self.world_size}: the process that joined as rank {rank} does not know the "
                    f"job's token (${TOKEN_VARIABLE}); give every process of the job the same one"
                )

    def sum(self, values: Tensor, what: str) -> Tensor:
        """The sum over all ranks, in place, returned."""
        with self._waiting(what):
            dist.all_reduce(values, group=self._group)
        return values

    def copy_first(self, values: Sequence[Tensor], what: str) -> None:
        """Overwrite tensors with those of the first rank."""
        with self._translated(what):
            for value in values:
                dist.broadcast(value.detach(), dist.get_global_rank(self._group, 0), group=self._group)

    def barrier(self, what: str = "barrier") -> None:
        """Return when every rank has come here."""
        self.sum(torch.zeros(1), what)

    def close(self) -> None:
        """Leave the group; later calls fail. No call of the others is waited for."""
        # torch 2.13 aborts at exit ("terminate called without an active exception") where a gloo group outlives
        # destroy_process_group() through a reference, or is never destroyed.
        own = [] if self._made_default else [group for group in (self._down, self._group) if group is not None]
        self._group = self._down = None
        if self._shared is not None:
            self._shared.close()
            self._shared = None
            # they keep this object, and mapped memory, alive
            del self.exchange, self.exchange_into, self.exchange_pieces, self.exchange_numbers, self.outgoing
        if self._made_default and dist.is_initialized():
            dist.destroy_process_group()
        for group in own:
            with contextlib.suppress(ValueError):  # the program has ended all of its groups already
                dist.destroy_process_group(group)
        self.store = None

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        self.check()
        try:
            yield
        except RuntimeError as error:
            raise self.lost(error, what) from error
        except BaseException as error:
            self.fail(what, error)
            raise

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """``_translated``, whose time is that until the last rank has come."""
        begun = time.perf_counter()
        with self._translated(what):
            yield
        self.link.waited += time.perf_counter() - begun

    def fail(self, what: str, error: BaseException) -> None:
        """Note that a call ended half done: the next exchange would be taken for its rest. The first cause stays."""
        self.failed = self.failed or f"{what}: {type(error).__name__}: {_first_line(error)}"

    def check(self) -> None:
        """Raise a PeerError with the first cause where the ranks are out of step."""
        if self.failed:
            raise PeerError(
                f"rank {self.rank}: the ranks are out of step since an earlier call failed; end this job and start it "
                f"again; the first error was, in {self.failed}"
            )

    def lost(self, error: RuntimeError, what: str) -> PeerError:
        """The error of a call, with the ranks that no longer answer; from here on every call fails."""
        self.fail(what, error)
        silent, heard = self._roll_call(what)
        who = f"rank {', '.join(map(job.named, silent))} no longer answers" if silent else "every rank still answers"
        elsewhere = [f"rank {rank} in {call}" for rank, call in sorted(heard.items()) if call != what]
        who += f" ({', '.join(elsewhere)})" if elsewhere else ""
        return PeerError(
            f"rank {self.rank} of {self.world_size}, in {what}: {who} "
            f"(timeout {self.timeout.total_seconds():g} s): {_first_line(error)}"
        )

    def _roll_call(self, what: str) -> tuple[list[int], dict[int, str]]:
        """The ranks that do not say that they live, gone or running on without this one; the calls of those that do."""
        others, store = [rank for rank in range(self.world_size) if rank != self.rank], self.store
        if store is None:
            return [], {}
        heard: dict[int, str] = {}
        gone: list[int] = []
        over = threading.Event()

        def call() -> None:
            try:
                store.set(f"alive/{self.rank}", what)
                while len(heard) < len(others) and not over.wait(ROLL_CALL / 100):
                    for rank in others:
                        if rank not in heard and store.check([f"alive/{rank}"]):
                            heard[rank] = store.get(f"alive/{rank}").decode()
            except RuntimeError:  # the store lives with rank 0 or its launcher
                gone.append(0)

        # In a thread, because a call to a store behind a cut cable does not return.
        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        calling.join(ROLL_CALL)
        over.set()  # a thread inside the store while the interpreter ends aborts the process
        return (gone if gone and self.rank else [rank for rank in others if rank not in heard]), dict(heard)


def choose_interface(master: str) -> None:
    """Let gloo listen where the first machine is reached from, on loopback for one machine, and nowhere else."""
    if job.INTERFACE not in os.environ and (found := job.interface_to(master)) is not None:
        os.environ[job.INTERFACE] = found


def _rendezvous(timeout: timedelta) -> tuple[Any, int, int]:
    """The store, rank and world size of torch's ``env://``, whose server listens on MASTER_ADDR alone.

    torch 2.13's listens on every interface. Where a launcher holds the store, no rank listens.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return next(dist.rendezvous("env://", timeout=timeout))
    if int(os.environ["RANK"]) != 0:
        return _join(timeout)
    check_address(address)
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        server = socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise PeerError(
            f"rank 0 cannot listen on MASTER_ADDR {address}:{port}: {error.strerror}; set an address of this machine "
            "that the other ranks reach and a free port, or call torch.distributed.init_process_group() first"
        ) from None
    world_size = int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        address,
        server.getsockname()[1],
        world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=server.detach(),
    )
    store.set(_STORE_NAME, secrets.token_hex(8))
    return store, 0, world_size


def _join(timeout: timedelta) -> tuple[Any, int, int]:
    """The store of rank 0, but none that this process was in before.

    A rank that begins again may be faster than rank 0, which then still holds the store of the last group.
    """
    last = time.monotonic() + timeout.total_seconds()
    while True:
        left = timedelta(seconds=max(last - time.monotonic(), 0.001))
        try:
            store, rank, world_size = next(dist.rendezvous("env://", timeout=left))
            name = store.get(_STORE_NAME)
        except RuntimeError:
            if not _joined or time.monotonic() >= last:
                raise  # otherwise rank 0 may be ending the last group's store just now
        else:
            if name not in _joined:
                _joined.add(name)
                return store, rank, world_size
        time.sleep(0.01)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]

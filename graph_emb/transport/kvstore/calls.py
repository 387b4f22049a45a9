"""The one request and the one response that trainers and servers exchange on DGL's RPC.

Importing this module registers them; unpickling any of its classes imports it, so that DGL's own servers learn the
service from the first message (``announce``).
"""

from __future__ import annotations

import pickle
from typing import Any

from torch import Tensor

from graph_emb.core import errors
from graph_emb.core.errors import ConfigError, GraphEmbError, PeerError
from graph_emb.transport.kvstore.rpc import rpc

SERVICE = 7_340_611  # DGL's lie at 22_4xx, 700_xxx, 80x_xxx and 901_2xx; DGL's examples use numbers below 10_000_000


class Call(rpc.Request):
    """Do one thing at a server.

    Args:
        method: A name of ``tables.METHODS``.
        sender: The trainer's rank.
        arguments: Whatever pickles.
        tensors: Sent without pickling.
    """

    def __init__(self, method: str, sender: int, arguments: tuple[Any, ...] = (), *tensors: Tensor) -> None:
        self.method, self.sender, self.arguments, self.tensors = method, sender, arguments, tensors

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.method, self.sender, self.arguments, *self.tensors)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.method, self.sender, self.arguments, *tensors = state
        self.tensors = tuple(tensors)

    def process_request(self, server_state: Any) -> Any:
        """Run at the server; never raises, because DGL's loop would end with it."""
        from graph_emb.transport.kvstore.tables import tables_of

        return tables_of(server_state.kv_store).handle(self)


class Answer(rpc.Response):
    """What a call gave: a value, tensors, or the error that it raised there."""

    def __init__(self, value: Any = None, *tensors: Tensor, error: tuple[str, str] | None = None) -> None:
        self.value, self.error, self.tensors = value, error, tensors

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.value, self.error, *self.tensors)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.value, self.error, *tensors = state
        self.tensors = tuple(tensors)


def describe(error: BaseException) -> tuple[str, str]:
    """An error as a response carries it: the class's name and one line."""
    text = " ".join(str(error).split()) or "no message"
    return type(error).__name__, text


def revive(error: tuple[str, str], where: str) -> GraphEmbError:
    """The error that a server described: of its own class where it is one of ours."""
    name, text = error
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, GraphEmbError):
        return kind(f"{where}: {text}")
    return PeerError(f"{where}: {name}: {text}")


def check_picklable(thing: object, what: str) -> None:
    """Raise a ConfigError, before anything is sent, unless a thing can reach another process."""
    try:
        pickle.dumps(thing)
    except Exception as error:
        raise ConfigError(
            f"{what} {thing!r:.80} cannot be sent to the servers ({error}); use a function or class of a module"
        ) from None


class Announce:
    """A push handler that does nothing: DGL's servers unpickle it, which imports this module there."""

    def __call__(self, target: Any, name: str, ids: Tensor, data: Tensor) -> None:
        """Never called: no data has the name under which it is registered."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Announce, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Announce)

    def __hash__(self) -> int:
        return hash(Announce)


rpc.register_service(SERVICE, Call, Answer)

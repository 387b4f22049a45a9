"""No test here may reach the network or ask a question."""

from __future__ import annotations

import builtins
import socket
from typing import Any, NoReturn

import pytest


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: Any, **kwargs: Any) -> NoReturn:
        pytest.fail(f"reached for the network: {args}")

    def no_question(*args: Any) -> NoReturn:
        pytest.fail(f"asked on standard input: {args}")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(builtins, "input", no_question)
    monkeypatch.setattr("sys.stdin", None)

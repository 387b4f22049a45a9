"""When the thread that looks after peers within a message ends the process."""

from __future__ import annotations

from typing import Any

import pytest

from graph_emb.core.errors import PeerError
from graph_emb.transport.kvstore import stalled
from graph_emb.transport.kvstore.rpc import Receive


class Looks:
    """An event that says at each look which wait the main thread is in, and then that all is over."""

    def __init__(self, receive: Receive, seen: list[float | None]) -> None:
        self.receive, self.seen = receive, iter(seen)

    def wait(self, _: float) -> bool:
        try:
            self.receive.since = next(self.seen)
        except StopIteration:
            return True
        return False


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        ([1.0] * 5, True),
        ([1.0] * 4, False),  # as of a process that was stopped in a wait and goes on: looks are counted
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], False),
        ([1.0, 1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0], False),
        ([None] * 9, False),
    ],
)
def test_one_wait_that_several_looks_find_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], seen: list[float | None], ends: bool
) -> None:
    codes: list[int] = []
    told: list[PeerError] = []
    monkeypatch.setattr(stalled, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(stalled, "end_at_once", codes.append)

    def check() -> None:
        raise PeerError("server 1 ended\nwithout a goodbye")

    receive = Receive(lambda timeout: None)
    watch: Any = stalled.StallWatch(receive, check, "graph-emb: trainer 0", told.append)
    watch.close()  # its own thread
    watch._ending = Looks(receive, seen)
    watch._run()
    assert codes == [3] * ends
    assert [str(error) for error in told] == ["server 1 ended\nwithout a goodbye"] * ends
    assert capfd.readouterr().err == "graph-emb: trainer 0: error: server 1 ended without a goodbye\n" * ends

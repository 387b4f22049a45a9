"""What launchers compare before a process starts. Two machines that are this one, under other addresses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from graph_emb.core.errors import ConfigError, DataError, PeerError
from graph_emb.run.launch.meeting import TOLD, MachinesDifferError, Meeting, met, never
from graph_emb.run.launch.plan import Host, Machines
from graph_emb.transport.guard import new_token
from graph_emb.transport.kvstore.layout import free_ports

HOSTS = [Host("127.0.0.1", 1), Host("127.0.0.2", 1)]
PATIENCE = 120


@pytest.fixture(autouse=True)
def _common_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_EMB_TOKEN", new_token())


def both(act: Callable[[int], Any]) -> list[Any]:
    """What each of two launchers returns or raises."""
    ended: list[Any] = ["still there", "still there"]

    def launch(index: int) -> None:
        try:
            ended[index] = act(index)
        except Exception as error:
            ended[index] = error

    threads = [threading.Thread(target=launch, args=(index,), daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return ended


def meeting_of(facts: list[Callable[[], Mapping[str, Any]]]) -> list[Any]:
    """What each machine was told, or why it ended."""
    port = free_ports(1)

    def act(index: int) -> str:
        with met(Machines(HOSTS, index, port), facts[index]) as meeting:
            return meeting.told

    return both(act)


def test_equal_machines_go_on_and_know_the_first_ones_word() -> None:
    assert meeting_of([lambda: {"a": 1, TOLD: "[0]"}, lambda: {"a": 1, TOLD: "[]"}]) == ["[0]", "[0]"]


@pytest.mark.parametrize("other", [{"model.dim": 64}, {}])
def test_a_difference_is_named_on_all_machines(other: dict[str, Any]) -> None:
    ended = meeting_of([lambda: {"model.dim": 32}, lambda: other])
    there = other.get("model.dim", "not given")
    for error in ended:
        assert isinstance(error, MachinesDifferError)
        assert str(error).startswith(f"host 127.0.0.2: model.dim is {there}, and 32 on 127.0.0.1; nothing was started")


@pytest.mark.parametrize("bad", [0, 1])
def test_what_one_machine_refuses_ends_all_with_its_words(bad: int) -> None:
    def refuse() -> dict[str, Any]:
        raise DataError("part 1 is missing")

    facts: list[Callable[[], Mapping[str, Any]]] = [dict, dict]
    facts[bad] = refuse
    assert {str(error) for error in meeting_of(facts)} == {f"host 127.0.0.{bad + 1}: part 1 is missing"}


def test_another_hosts_file_is_a_difference() -> None:
    port = free_ports(1)

    def act(index: int) -> None:
        hosts = [HOSTS[0], Host("127.0.0.2", 1 + index)]
        with met(Machines(hosts, index, port), dict):
            pass

    assert all("hosts file is 127.0.0.1 1 0; 127.0.0.2 2 0, and 127.0.0.1 1 0; 127" in str(e) for e in both(act))


def test_another_token_is_refused_by_both() -> None:
    port = free_ports(1)

    def act(index: int) -> None:
        meeting = Meeting(Machines(HOSTS, index, port), new_token())
        try:
            meeting.agree({}, never)
        finally:
            meeting.leave()

    for index, error in enumerate(both(act)):
        assert isinstance(error, PeerError)
        assert f"host 127.0.0.{2 - index} does not hold the token of this machine" in str(error)


def test_a_machine_that_will_not_come_is_not_waited_for() -> None:
    begun = time.monotonic()
    machines = Machines(HOSTS, 0, free_ports(1))
    with (
        pytest.raises(PeerError, match=r"host 127\.0\.0\.2: ssh ended with exit code 255"),
        met(machines, dict, lambda: "host 127.0.0.2: ssh ended with exit code 255"),
    ):
        pass
    assert time.monotonic() - begun < PATIENCE


def test_a_launcher_does_not_come_to_the_job_that_it_has_left() -> None:
    """The first machine holds the store until all have left, and a fast one found it there for the next job."""
    port, jobs = free_ports(1), 4

    def act(index: int) -> list[str]:
        told = []
        for job in range(jobs):
            with met(Machines(HOSTS, index, port), lambda job=job: {"seed": job, TOLD: str(job)}) as meeting:
                told.append(meeting.told)
        return told

    assert both(act) == [[str(job) for job in range(jobs)]] * 2


def test_several_machines_need_a_port() -> None:
    with pytest.raises(ConfigError, match="--port"), met(Machines(HOSTS, 0, 0), dict):
        pass

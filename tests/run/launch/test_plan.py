"""Hosts files, and the processes that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.run.launch.plan import Host, own_index, read_hosts, servers, trainers


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_gives_address_trainers_and_servers(tmp_path: Path) -> None:
    path = written(tmp_path, "10.0.0.1 4 1  # the big one\n\n# none\n10.0.0.2\n10.0.0.3 1\n")
    assert read_hosts(path, 2, 0) == [Host("10.0.0.1", 4, 1), Host("10.0.0.2", 2, 0), Host("10.0.0.3", 1, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        ("a b", "line 1: 'a b' is not"),
        ("a 1 2 3", "line 1"),
        ("a -1", "line 1"),
        ("a\nb 0", "line 2: 0 trainers"),
        ("a\na", "line 2: a is named twice"),
    ],
)
def test_a_bad_hosts_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_hosts(written(tmp_path, text), 1, 0)


def test_a_missing_hosts_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt"):
        read_hosts(tmp_path / "none.txt", 1, 0)


def test_this_machine_is_found_by_its_addresses() -> None:
    assert own_index([Host("192.0.2.1", 1), Host("127.0.0.1", 1)]) == 1


@pytest.mark.parametrize("addresses", [["192.0.2.1"], ["127.0.0.1", "localhost"]])
def test_no_or_two_places_for_this_machine_is_an_error(addresses: list[str]) -> None:
    with pytest.raises(ConfigError, match="say which one by --host-index"):
        own_index([Host(address, 1) for address in addresses])


def test_ranks_are_counted_over_uneven_hosts(tmp_path: Path) -> None:
    hosts = [Host("10.0.0.1", 1), Host("10.0.0.2", 3)]
    made = trainers(["run"], hosts, 1, port=77, logs=tmp_path, threads=2, environment={})
    assert [process.rank for process in made] == [1, 2, 3]
    assert [process.environment["LOCAL_RANK"] for process in made] == ["0", "1", "2"]
    assert {process.environment["WORLD_SIZE"] for process in made} == {"4"}
    assert made[0].environment["MASTER_ADDR"] == "10.0.0.1"
    assert made[0].environment["MASTER_PORT"] == "77"
    assert made[0].environment["OMP_NUM_THREADS"] == "2"
    assert not any(process.shown for process in made), "rank 0 is on the other machine"


def test_idle_threads_of_a_server_sleep_soon_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spins() -> str:
        hosts = [Host("127.0.0.1", 1, servers=1)]
        (made,) = servers(hosts, 0, hosts_file=tmp_path, logs=tmp_path, threads=2, environment={})
        return made.environment["GOMP_SPINCOUNT"]

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert int(spins()) < 100_000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert spins() == "7"

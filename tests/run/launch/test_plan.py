"""Hosts files, and the processes that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.run.launch.plan import Host, Machines, own_index, read_hosts, servers, trainers
from graph_emb.transport.lockstep import layout


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("127.0.0.1\nno-such-host.invalid", r"line 2: host 'no-such-host.invalid' has no address"),
        ("127.0.0.1\n# a comment\nlocalhost", r"line 3: localhost is 127.0.0.1 of line 1 \(127.0.0.1\)"),
    ],
)
def test_an_unknown_address_and_two_names_of_a_machine_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_hosts(written(tmp_path, text), 1, 0)


def test_hosts_without_a_number_share_the_trainers_of_the_job(tmp_path: Path) -> None:
    path = written(tmp_path, "10.0.0.1 2\n10.0.0.2\n10.0.0.3\n")
    assert [host.trainers for host in read_hosts(path, None, 0, total=8)] == [2, 3, 3]
    assert [host.trainers for host in read_hosts(path, None, 0)] == [2, 1, 1]
    for total in (3, 7):
        with pytest.raises(ConfigError, match=rf"trainers = {total} over all machines, but .* gives 2 trainers, and 2"):
            read_hosts(path, None, 0, total=total)
    with pytest.raises(ConfigError, match=r"trainers = 5 over all machines, but .* gives 4 trainers; make"):
        read_hosts(written(tmp_path, "10.0.0.1 2\n10.0.0.2 2\n"), None, 0, total=5)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 8, 9])
@pytest.mark.parametrize("counts", [[1, 1], [2, 1], [1, 3, 2]])
def test_a_machine_takes_the_parts_that_its_ranks_lie_in(counts: list[int], num_parts: int) -> None:
    hosts = [Host(f"10.0.0.{number}", count) for number, count in enumerate(counts, 1)]
    ranges = layout(RangeBook.even(72, num_parts), sum(counts), None, "t")
    for index in range(len(hosts)):
        machines, wanted = Machines(hosts, index), set()
        for rank in machines.ranks:
            low, high = ranges.owned(rank)
            wanted |= {
                part
                for part in range(num_parts)
                if low < (part + 1) * 72 // num_parts and high > part * 72 // num_parts
            }
        assert set(machines.parts(num_parts)) == wanted


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

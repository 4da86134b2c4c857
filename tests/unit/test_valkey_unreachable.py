"""A Valkey that can't be reached: nobody waits for it for long, and only invalidations fail."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from sluiceway.adapters import valkey_cache
from sluiceway.adapters.valkey_cache import (
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    REST_MS,
    TRIES,
    ValkeyCache,
)
from sluiceway.domain.errors import StoreBusyError

from tests.fakes.examples import a_job, an_entry, failed
from tests.fakes.in_memory import NOW_MS, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from valkey import Valkey

SLACK_S = 1.0


@dataclass
class Bench:
    client: Valkey
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = ValkeyCache(
            self.client, clock=self.clock, on_failure=lambda *what: self.told.append(what)
        )


@pytest.fixture
def port() -> Iterator[int]:
    """A port that takes connections and never answers; its requests wait in the backlog."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        yield silent.getsockname()[1]


@pytest.fixture
def refused() -> Iterator[Bench]:
    """Nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with valkey_cache.connect(f"valkey://127.0.0.1:{closed.getsockname()[1]}") as client:
            yield Bench(client)


def test_client_connects_when_it_is_first_used() -> None:
    with valkey_cache.connect("valkeys://nowhere.invalid:6379") as client:
        assert client.connection_pool.connection_kwargs["host"] == "nowhere.invalid"


def test_address_with_tls_checks_whom_it_talks_to() -> None:
    with valkey_cache.connect("valkeys://nowhere.invalid:6379") as client:
        connection = client.connection_pool.make_connection()

    assert (connection.check_hostname, connection.cert_reqs.name) == (True, "CERT_REQUIRED")


def test_read_is_a_miss_and_told(refused: Bench) -> None:
    entry = refused.cache.read("c1_key")

    assert entry is None
    assert refused.told == [("read", "ConnectionError")]


def test_reads_after_it_are_misses_without_a_try_for_a_while(refused: Bench) -> None:
    refused.cache.read("c1_key")
    refused.clock.advance(REST_MS - 1)

    entry = refused.cache.read("c1_key")

    assert entry is None
    assert len(refused.told) == 1


def test_read_is_tried_again_after_the_while(refused: Bench) -> None:
    refused.cache.read("c1_key")
    refused.clock.advance(REST_MS)

    refused.cache.read("c1_key")

    assert len(refused.told) == 2


def test_store_is_lost_and_told(refused: Bench) -> None:
    writes = refused.cache.store(an_entry(a_job()), a_job())

    assert writes == []
    assert refused.told == [("store", "ConnectionError")]


def test_store_is_tried_though_reads_rest(refused: Bench) -> None:
    refused.cache.read("c1_key")

    refused.cache.store(an_entry(a_job()), a_job())

    assert [what for what, _ in refused.told] == ["read", "store"]


def test_refresh_is_queued_without_its_mark(refused: Bench) -> None:
    entry = an_entry(a_job())

    writes = refused.cache.refresh_queued(entry, a_job())
    refused.cache.refresh_won(entry, a_job())

    assert writes == []
    assert refused.told == [("mark", "ConnectionError")] * 2


def test_failure_of_a_refresh_is_written_without_a_cool_down(refused: Bench) -> None:
    writes = refused.cache.refresh_failed(failed(a_job()))

    assert writes == []
    assert refused.told == [("read", "ConnectionError")]


def test_invalidation_is_refused_and_not_lost(refused: Bench) -> None:
    with pytest.raises(StoreBusyError) as error:
        refused.cache.invalidate("c1_key", now_ms=NOW_MS)

    assert error.value.retry_after_s >= 1
    assert refused.told == [("invalidate", "ConnectionError")]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda cache: cache.read("c1_key"), id="read"),
        pytest.param(lambda cache: cache.store(an_entry(a_job()), a_job()), id="store"),
    ],
)
def test_server_that_does_not_answer_holds_nobody_up_for_long(
    port: int, call: Callable[[ValkeyCache], object]
) -> None:
    with valkey_cache.connect(f"valkey://127.0.0.1:{port}") as client:
        bench = Bench(client)
        begun = time.monotonic()

        call(bench.cache)

        took_s = time.monotonic() - begun
    assert took_s < TRIES * (CONNECT_TIMEOUT_S + READ_TIMEOUT_S) + SLACK_S
    assert [error_class for _, error_class in bench.told] == ["TimeoutError"]

"""Many readers of one key at the moment when its answer ends: the vendor is asked once.

The entry's times are moved in the table instead of being waited for. MiniStack answers some ten
requests a second, so the readers take a while; the vendor is slow enough to be met by many of them.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import httpx

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

READERS = 200
AT_ONCE = 12
"""More in flight only wait longer in the emulator."""

SLOW_S = 4
HELD_S = 12
"""Longer than a worker takes to start, so that it meets the lease of another that is at work."""

OLD, NEW = "the old answer", "the new answer"


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("stampede") / ".sluiceway") as made:
        yield made


def cached(plant: Plant, prompt: str, *, slow_s: float = SLOW_S) -> str:
    """The cache key of an entry that the first call to the vendor left; the next one is slow."""
    plant.vendor_fails(prompt, text=OLD)
    row = plant.until(plant.submit(prompt, model="news"), "completed")
    assert plant.calls(prompt)["calls"] == 1
    plant.vendor_recovers()
    plant.vendor_fails(prompt, text=NEW, delay_s=slow_s)
    return str(row["cache_key"])


def stampede(clients: Sequence[httpx.Client], prompt: str) -> list[tuple[int, dict[str, Any]]]:
    """Status and body of each reader's answer; the clients take turns."""
    body = {"model": "news", "input": prompt}

    def read(number: int) -> tuple[int, dict[str, Any]]:
        answer = clients[number % len(clients)].post("/jobs", json=body)
        return answer.status_code, answer.json()

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(read, range(READERS)))
    took_s = time.monotonic() - began
    kinds = Counter((status, job["status"], job["cache"]["status"]) for status, job in answers)
    print(f"\n{prompt}: {READERS} readers in {took_s:.1f} s, {READERS / took_s:.1f} a second")  # noqa: T201
    for kind, many in kinds.most_common():
        print("   ", many, *kind)  # noqa: T201
    print("    texts:", dict(texts(answers)))  # noqa: T201
    return answers


def texts(answers: list[tuple[int, dict[str, Any]]]) -> Counter[str]:
    """How many readers got which text."""
    return Counter(job["result"]["text"] for status, job in answers if status == 200)


def open_ids(answers: list[tuple[int, dict[str, Any]]]) -> set[str]:
    """The ids that were given to readers without an answer."""
    return {job["id"] for status, job in answers if status == 202}


def sources(plant: Plant, job_ids: set[str]) -> Counter[str]:
    """Where the results of these jobs came from, as soon as there are all."""
    rows = [plant.until(job_id, "completed") for job_id in job_ids]
    return Counter(row["result_source"] for row in rows)


def refreshes(plant: Plant, cache_key: str, *, ended: int) -> list[dict[str, Any]]:
    """The entry's refresh jobs, as soon as so many have completed."""
    owner = f"refresh#{cache_key}"

    def all_ended() -> bool:
        return sum(row["status"] == "completed" for row in plant.jobs_of(owner)) >= ended

    assert wait_for(all_ended, timeout_s=TIMEOUT_S), plant.jobs_of(owner)
    return plant.jobs_of(owner)


@pytest.mark.proves(17, 18)
def test_readers_of_two_partners_at_soft_expiry_cause_one_refresh(plant: Plant) -> None:
    cache_key = cached(plant, "At soft expiry")
    plant.entry_expires(cache_key, soft_in_s=1, hard_in_s=300)

    answers = stampede([plant.acme, plant.globex], "At soft expiry")

    (refresh,) = refreshes(plant, cache_key, ended=1)
    read = texts(answers)
    seen = Counter(job["cache"]["status"] for _, job in answers)
    assert {status for status, _ in answers} == {200}
    assert set(read) <= {OLD, NEW}
    assert seen["stale"] > 1
    assert plant.calls("At soft expiry")["calls"] == 2
    assert (refresh["attempts"], refresh["result_source"]) == (1, "vendor")


@pytest.mark.proves(2, 9)
def test_readers_at_hard_expiry_get_one_job(plant: Plant) -> None:
    cache_key = cached(plant, "At hard expiry")
    plant.entry_expires(cache_key, soft_in_s=-2, hard_in_s=-1)

    with plant.lane_stopped("Interactive"):  # so that no reader comes after the job's end
        answers = stampede([plant.acme], "At hard expiry")

    (job_id,) = open_ids(answers)
    row = plant.until(job_id, "completed")
    assert {status for status, _ in answers} == {202}
    assert row["attempts"] == 1
    assert plant.calls("At hard expiry")["calls"] == 2
    assert plant.jobs_of(f"refresh#{cache_key}") == []


@pytest.mark.proves(3)
def test_hard_expiry_during_a_refresh_asks_the_vendor_once(plant: Plant) -> None:
    cache_key = cached(plant, "Refreshed too late", slow_s=HELD_S)
    plant.entry_expires(cache_key, soft_in_s=-1, hard_in_s=300)
    plant.acme.post("/jobs", json={"model": "news", "input": "Refreshed too late"})
    plant.calls_begun("Refreshed too late", at_least=2)
    plant.entry_expires(cache_key, soft_in_s=-2, hard_in_s=-1)

    answers = stampede([plant.acme], "Refreshed too late")

    (_,) = refreshes(plant, cache_key, ended=1)
    assert {status for status, _ in answers} <= {200, 202}
    assert set(texts(answers)) <= {NEW}
    assert set(sources(plant, open_ids(answers))) <= {"cache"}
    assert plant.calls("Refreshed too late")["calls"] == 2


@pytest.mark.proves(2)
def test_readers_of_a_cold_key_get_one_job(plant: Plant) -> None:
    plant.vendor_fails("Cold", text=NEW)

    with plant.lane_stopped("Interactive"):
        answers = stampede([plant.acme], "Cold")

    (job_id,) = open_ids(answers)
    row = plant.until(job_id, "completed")
    assert {status for status, _ in answers} == {202}
    assert row["attempts"] == 1
    assert plant.calls("Cold")["calls"] == 1


def test_readers_who_meet_the_end_of_a_job_ask_the_vendor_once(plant: Plant) -> None:
    """One may look into the cache before the end and for the claim after it: a job of its own.

    That job finds the entry, and calls nobody.
    """
    plant.vendor_fails("Just ending", text=NEW, delay_s=1)

    answers = stampede([plant.acme], "Just ending")

    found = sources(plant, open_ids(answers))
    assert {status for status, _ in answers} <= {200, 202}
    assert set(texts(answers)) <= {NEW}
    assert found["vendor"] == 1
    assert set(found) <= {"vendor", "cache"}
    assert plant.calls("Just ending")["calls"] == 1

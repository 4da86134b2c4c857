"""Lists: a tenant's jobs many at once, on the fake and on DynamoDB."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters import dynamodb_job_lists
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_job_lists import DynamoDBJobLists
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.payload import Payload

from tests.contract.harness import make_tables, store_on
from tests.fakes import examples, in_memory
from tests.fakes.in_memory import FakeClock, InMemoryJobLists, InMemoryJobs, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluiceway.domain.job import Job
    from sluiceway.ports import JobLists, JobPage, JobStore


class Desk:
    """Jobs, and the lists of them."""

    def __init__(self, jobs: JobStore, lists: JobLists, client: Any = None, name: str = "") -> None:
        self.jobs, self.lists, self.client, self.name = jobs, lists, client, name

    def submit(self, number: int, **members: Any) -> Job:
        outcome = self.jobs.submit(examples.a_job(number, **members), shard_caps=[1000])
        return outcome.job  # type: ignore[union-attr]  # each has a claim of its own

    def all_pages(self, **wanted: Any) -> list[JobPage]:
        pages = [self.lists.page("acme", **wanted)]
        while pages[-1].has_more:
            pages.append(self.lists.page("acme", after=pages[-1].last_id, **wanted))
        return pages


@pytest.fixture(params=["in_memory", "moto", "dynamodb_local"])
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """One whose pages read twelve rows at most."""
    monkeypatch.setattr(dynamodb_job_lists, "MOST_READ", 12)
    monkeypatch.setattr(in_memory, "MOST_READ", 12)
    clock = FakeClock()
    if request.param == "in_memory":
        world = World()
        yield Desk(InMemoryJobs(world, clock=clock), InMemoryJobLists(world))
        return
    client: Any = request.getfixturevalue(f"{request.param}_client")
    tables = make_tables(client, f"lists-{secrets.token_hex(4)}")
    name = tables.names.jobs
    store = store_on(client, tables, clock=clock).jobs
    yield Desk(store, DynamoDBJobLists(Table(client, pause=lambda _: None), name), client, name)


def ids(page: JobPage) -> list[str]:
    return [job.job_id for job in page.jobs]


def test_page_has_the_newest_first(desk: Desk) -> None:
    jobs = [desk.submit(number) for number in (1, 2, 3)]

    page = desk.lists.page("acme", limit=2)

    assert ids(page) == [jobs[2].job_id, jobs[1].job_id]
    assert page.jobs[0] == jobs[2]
    assert (page.has_more, page.last_id) == (True, jobs[1].job_id)


def test_pages_tell_each_job_once(desk: Desk) -> None:
    jobs = [desk.submit(number) for number in range(1, 8)]

    pages = desk.all_pages(limit=3)

    assert [len(page.jobs) for page in pages] == [3, 3, 1]
    assert [one for page in pages for one in ids(page)] == [job.job_id for job in jobs[::-1]]


def test_page_that_is_just_full_is_the_last(desk: Desk) -> None:
    desk.submit(1)
    desk.submit(2)

    page = desk.lists.page("acme", limit=2)

    assert (len(page.jobs), page.has_more) == (2, False)


def test_jobs_that_come_later_leave_the_next_page_as_it_was(desk: Desk) -> None:
    jobs = [desk.submit(number) for number in (1, 2, 3)]
    first = desk.lists.page("acme", limit=2)
    desk.submit(4)

    second = desk.lists.page("acme", limit=2, after=first.last_id)

    assert ids(second) == [jobs[0].job_id]


def test_tenant_without_jobs_has_an_empty_list(desk: Desk) -> None:
    desk.submit(1)

    page = desk.lists.page("globex", limit=5)

    assert (list(page.jobs), page.has_more, page.last_id) == ([], False, None)


@pytest.mark.proves(10)
def test_cursor_of_another_tenant_shows_ones_own_jobs_alone(desk: Desk) -> None:
    theirs = desk.submit(3, tenant="globex")
    own = desk.submit(1)
    desk.submit(2, tenant="globex")

    page = desk.lists.page("acme", limit=5, after=theirs.job_id)

    assert ids(page) == [own.job_id]


def test_filter_by_status_and_model(desk: Desk) -> None:
    desk.submit(1)
    desk.submit(2, model="other")
    wanted = desk.submit(3, model="other")
    ended = examples.failed(wanted)
    desk.jobs.apply(wanted, ended)

    page = desk.lists.page("acme", limit=5, status=JobStatus.FAILED, model="other")

    assert ids(page) == [wanted.job_id]
    assert ids(desk.lists.page("acme", limit=5, status=JobStatus.FAILED, model="demo-chat")) == []


def test_filtered_page_stops_reading_and_goes_on_from_there(desk: Desk) -> None:
    rare = desk.submit(1, model="rare")
    for number in range(2, 30):
        desk.submit(number)

    pages = desk.all_pages(limit=5, model="rare")

    assert [ids(page) for page in pages] == [[], [], [rare.job_id]]
    assert pages[0].last_id is not None


def test_rows_that_are_no_jobs_of_the_tenant_are_in_no_list(desk: Desk) -> None:
    desk.submit(1, tenant="refresh#c1_key")

    assert ids(desk.lists.page("acme", limit=5)) == []


def test_many_jobs_are_read_by_their_ids(desk: Desk) -> None:
    jobs = [desk.submit(number) for number in (1, 2)]
    theirs = desk.submit(3, tenant="globex")
    asked = [jobs[1].job_id, theirs.job_id, jobs[0].job_id, "job_unknown", jobs[0].job_id]

    found = desk.lists.get("acme", asked)

    assert dict(found) == {job.job_id: job for job in jobs}
    assert desk.lists.get("acme", []) == {}


def test_hundred_big_jobs_are_all_read(desk: Desk) -> None:
    big = Payload(inline=b"x" * 200_000)
    for number in range(100):
        desk.jobs.submit(
            replace(examples.a_job(number), input=big),
            shard_caps=[1000],
        )
    asked = [examples.a_job(number).job_id for number in range(100)]

    assert list(desk.lists.get("acme", asked)) == asked


def test_damaged_row_hides_no_other(desk: Desk) -> None:
    if desk.client is None:
        pytest.skip("what is in memory can't be damaged so")
    kept = [desk.submit(1), desk.submit(3)]
    broken = desk.submit(2)
    desk.client.update_item(
        TableName=desk.name,
        Key={"tenant": {"S": "acme"}, "job_id": {"S": broken.job_id}},
        UpdateExpression="SET lane = :lane",
        ExpressionAttributeValues={":lane": {"S": "nowhere"}},
    )

    assert ids(desk.lists.page("acme", limit=5)) == [kept[1].job_id, kept[0].job_id]
    assert set(desk.lists.get("acme", [broken.job_id, kept[0].job_id])) == {kept[0].job_id}


def test_reading_many_gives_up_when_the_table_gives_nothing() -> None:
    class Stubborn:
        def batch_get_item(self, **request: Any) -> dict[str, Any]:
            return {"Responses": {}, "UnprocessedKeys": request["RequestItems"]}

    lists = DynamoDBJobLists(Table(Stubborn(), pause=lambda _: None), "jobs")  # type: ignore[arg-type]

    with pytest.raises(StoreBusyError):
        lists.get("acme", ["job_1"])

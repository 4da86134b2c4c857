"""callback_url: stored on the job, a part of no key, and added to the open job by a duplicate."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.errors import ValidationFailedError
from sluiceway.domain.job import MAX_CALLBACKS, JobStatus
from sluiceway.domain.request import parse_submit
from sluiceway.usecases.submit_job import Accepted

from tests.fakes.in_memory import InMemoryJobs
from tests.unit.gateway import Gateway

if TYPE_CHECKING:
    from sluiceway.domain.job import Job
    from sluiceway.ports import Applied, Moved

URL = "https://hooks.example/one"
OTHER = "https://hooks.example/two"


def submit(gateway: Gateway, url: str | None = None) -> Accepted:
    outcome = gateway.submit(**({} if url is None else {"callback_url": url}))
    assert isinstance(outcome, Accepted)
    return outcome


def parse(url: object, *, local: bool = False) -> str | None:
    body = {"model": "demo-chat", "input": "hello", "callback_url": url}
    return parse_submit(json.dumps(body).encode(), local=local).callback_url


# ------------------------------------------------------------------ the member


def test_callback_is_taken() -> None:
    assert parse(URL) == URL
    assert parse(None) is None


def test_callback_in_capitals_is_the_same_callback() -> None:
    gateway = Gateway()
    submit(gateway, URL)

    again = submit(gateway, URL.replace("https://hooks.example", "HTTPS://Hooks.Example"))

    assert again.deduplicated
    assert again.job.callback_urls == (URL,)


@pytest.mark.parametrize("url", ["http://hooks.example/", "http://127.0.0.1:8080/hook"])
def test_local_stack_takes_callbacks_to_anywhere(url: str) -> None:
    assert parse(url, local=True) == url
    with pytest.raises(ValidationFailedError):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://u:hunter2@hooks.example/",  # pragma: allowlist secret
        *(1, [], "", "hunter2", "https://10.0.0.1/"),
        *("HTTP://HOOKS.EXAMPLE/", "HTTPS://10.0.0.1/", "HTTPS://[::FFFF:10.0.0.1]/"),
    ],
)
def test_unusable_callback_is_named_and_not_repeated(url: object) -> None:
    with pytest.raises(ValidationFailedError) as caught:
        parse(url)

    assert [fault["field"] for fault in caught.value.errors] == ["callback_url"]
    assert "hunter2" not in str(caught.value.errors)


# ------------------------------------------------------------------ the job


def test_callback_is_stored_on_the_job() -> None:
    assert submit(Gateway(), URL).job.callback_urls == (URL,)
    assert submit(Gateway()).job.callback_urls == ()


def test_callback_is_a_part_of_no_key() -> None:
    plain, told = submit(Gateway()).job, submit(Gateway(), URL).job

    assert (plain.job_key, plain.cache_key) == (told.job_key, told.cache_key)


def test_duplicate_adds_its_callback_to_the_open_job() -> None:
    gateway = Gateway()
    first = submit(gateway, URL)

    second = submit(gateway, OTHER)

    assert second.deduplicated
    assert second.job.job_id == first.job.job_id
    assert second.job.callback_urls == (URL, OTHER)
    assert gateway.world.jobs["acme", first.job.job_id].callback_urls == (URL, OTHER)


@pytest.mark.parametrize("again", [URL, None])
def test_duplicate_that_brings_nothing_new_writes_nothing(again: str | None) -> None:
    gateway = Gateway()
    first = submit(gateway, URL)
    before = dict(gateway.world.jobs)

    assert submit(gateway, again).job.callback_urls == (URL,)
    assert gateway.world.jobs == before
    assert first.job.job_id


def test_more_callbacks_than_a_job_may_have_are_refused() -> None:
    gateway = Gateway()
    for number in range(MAX_CALLBACKS):
        submit(gateway, f"https://hooks.example/{number}")

    with pytest.raises(ValidationFailedError) as caught:
        submit(gateway, URL)

    assert [fault["field"] for fault in caught.value.errors] == ["callback_url"]
    assert submit(gateway, "https://hooks.example/3").deduplicated


def test_job_that_ended_meanwhile_gives_way_to_a_new_one() -> None:
    gateway = Gateway()
    first = submit(gateway).job

    class Ending(InMemoryJobs):
        """The job ends just before the callback is added."""

        def add_callback(self, job: Job, url: str) -> Applied | Moved:
            ended = replace(job, status=JobStatus.COMPLETED)
            gateway.world.jobs[job.tenant, job.job_id] = ended
            return super().add_callback(job, url)

    gateway.jobs = Ending(gateway.world, clock=gateway.clock)

    second = submit(gateway, URL)

    assert not second.deduplicated
    assert second.job.job_id != first.job_id
    assert second.job.callback_urls == (URL,)

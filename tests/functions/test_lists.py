"""GET /jobs and GET /models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.http import MAX_REPLY_BYTES

from tests.functions.stage import request

if TYPE_CHECKING:
    from tests.functions.stage import Answer, Stage


def jobs(stage: Stage, query: dict[str, str] | None = None, **changes: Any) -> Answer:
    return stage.answer(request("GET", "/jobs", query=query, **changes))


def submit(stage: Stage, number: int) -> str:
    stage.clock.advance(1)
    job_id: str = stage.submit(f"question {number}").body["id"]
    return job_id


def test_list_has_the_tenants_jobs_newest_first(stage: Stage) -> None:
    first, second = submit(stage, 1), submit(stage, 2)
    stage.run_job(first)

    answer = jobs(stage)

    assert answer.status == 200
    assert answer.body["object"] == "list"
    assert [job["id"] for job in answer.body["data"]] == [second, first]
    assert (answer.body["has_more"], answer.body["last_id"]) == (False, first)


def test_listed_job_is_the_fetched_one_without_its_result(stage: Stage) -> None:
    job_id = submit(stage, 1)
    stage.run_job(job_id)

    (listed,) = jobs(stage).body["data"]
    fetched = stage.get(job_id).body

    assert fetched.pop("result")
    assert listed == fetched


def test_pages_follow_each_other(stage: Stage) -> None:
    ids = [submit(stage, number) for number in range(5)]

    first = jobs(stage, {"limit": "2"}).body
    second = jobs(stage, {"limit": "2", "after": first["last_id"]}).body
    third = jobs(stage, {"limit": "2", "after": second["last_id"]}).body

    assert [job["id"] for page in (first, second, third) for job in page["data"]] == ids[::-1]
    assert [page["has_more"] for page in (first, second, third)] == [True, True, False]


def test_page_that_lambda_could_not_return_is_shorter_and_goes_on(stage: Stage) -> None:
    bulky = {f"{number:02}{chr(0) * 62}": chr(0) * 512 for number in range(16)}
    ids = []
    for number in range(90):
        stage.clock.advance(1)
        body = {"model": "demo-chat", "input": f"question {number}", "metadata": bulky}
        ids.append(stage.post(body).body["id"])

    first = jobs(stage, {"limit": "100"})
    second = jobs(stage, {"limit": "100", "after": first.body["last_id"]})

    assert len(json.dumps(first.text)) <= MAX_REPLY_BYTES
    assert (first.body["has_more"], second.body["has_more"]) == (True, False)
    told = [job["id"] for page in (first, second) for job in page.body["data"]]
    assert told == ids[::-1]


def test_list_is_filtered_by_status_and_model(stage: Stage) -> None:
    done, queued = submit(stage, 1), submit(stage, 2)
    stage.run_job(done)

    assert [job["id"] for job in jobs(stage, {"status": "completed"}).body["data"]] == [done]
    assert [job["id"] for job in jobs(stage, {"status": "queued"}).body["data"]] == [queued]
    assert len(jobs(stage, {"model": "demo-chat"}).body["data"]) == 2
    assert jobs(stage, {"model": "unheard-of"}).body["data"] == []


def test_list_of_another_tenant_is_empty(stage: Stage) -> None:
    job_id = submit(stage, 1)

    for query in (None, {"after": job_id}, {"after": "job_ZZZZZZZZZZZZZZZZZZZZZZZZZZ"}):
        assert jobs(stage, query, tenant="globex").body["data"] == []


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "1e1"}, "limit"),
        ({"limit": ""}, "limit"),
        ({"limit": "٣"}, "limit"),
        ({"status": "done"}, "status"),
        ({"status": ""}, "status"),
        ({"status": "QUEUED"}, "status"),
        ({"model": ""}, "model"),
        ({"model": "a b"}, "model"),
        ({"after": ""}, "after"),
        ({"after": "hit_abc"}, "after"),
        ({"after": "job_" + "x" * 100}, "after"),
        ({"after": "audit#2026-01"}, "after"),
        ({"before": "job_1"}, "before"),
        ({"tenant": "globex"}, "tenant"),
    ],
)
def test_bad_parameter_is_refused_by_its_name(
    stage: Stage, query: dict[str, str], named: str
) -> None:
    answer = jobs(stage, query)

    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert named in answer.body["detail"]


def test_repeated_parameter_is_refused(stage: Stage) -> None:
    event = request("GET", "/jobs", query={"limit": "2"})
    event["multiValueQueryStringParameters"] = {"limit": ["1", "2"]}

    answer = stage.answer(event)

    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


def test_list_needs_the_scope_read(stage: Stage) -> None:
    answer = jobs(stage, scopes="submit")

    assert (answer.status, answer.body["code"]) == (403, "forbidden")


def test_head_of_the_list_has_no_body(stage: Stage) -> None:
    answer = stage.answer(request("HEAD", "/jobs"))

    assert (answer.status, answer.text) == (200, "")


def test_models_are_told_in_openais_form(stage: Stage) -> None:
    answer = stage.answer(request("GET", "/models"))

    assert answer.status == 200
    assert answer.body["object"] == "list"
    assert [model["id"] for model in answer.body["data"]] == sorted(stage.catalogue.models)
    for model in answer.body["data"]:
        assert (model["object"], model["created"]) == ("model", 0)
        assert model["owned_by"] == stage.catalogue.models[model["id"]].vendor
        assert "vendor_model" not in model


def test_models_need_the_scope_read(stage: Stage) -> None:
    answer = stage.answer(request("GET", "/models", scopes="submit"))

    assert answer.status == 403

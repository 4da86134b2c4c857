"""Batches in the partner API, event in and answer out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.catalogue import Tenant
from sluiceway.domain.errors import StoreBusyError
from sluiceway.domain.job import JobStatus
from sluiceway.domain.payload import Payload
from sluiceway.ports import VendorAnswer

from tests.fakes.in_memory import (
    InMemoryBatches,
    InMemoryCache,
    InMemoryJobs,
    InMemoryQueue,
)
from tests.functions.stage import ABSENT, Answer, Stage, end, request
from tests.functions.test_api import LAMBDA_ANSWER_BYTES, assert_nothing_happened, assert_problem
from tests.unit.logs import log_lines, metric_lines, output
from tests.unit.samples import CATALOGUE, packed

if TYPE_CHECKING:
    from sluiceway.domain.batch import Batch
    from sluiceway.ports import Found

BATCH_ID = "batch_01KDVT7V00000000000000000A"


def an_item(custom_id: str = "a", text: str = "hello", **members: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "model": "demo-chat", "input": text, **members}


def post(stage: Stage, jobs: Any, *, body: Any = ABSENT, **changes: Any) -> Answer:
    """Sends a batch of these items; or this body."""
    event = request("POST", "/batches", **changes)
    event["body"] = json.dumps({"jobs": jobs} if body is ABSENT else body)
    return stage.answer(event)


def get(stage: Stage, batch_id: str, method: str = "GET", **changes: Any) -> Answer:
    return stage.answer(request(method, f"/batches/{batch_id}", **changes))


def cached(stage: Stage, text: str) -> str:
    """Runs this prompt once; gives its job's id."""
    job_id: str = stage.submit(text).body["id"]
    stage.run_job(job_id)
    return job_id


def jobs_of(answer: Answer) -> list[str]:
    return [one["job"]["id"] for one in answer.body["data"] if "job" in one]


def codes_of(answer: Answer) -> list[str | None]:
    return [one["error"]["code"] if "error" in one else None for one in answer.body["data"]]


# ------------------------------------------------------------------ submit


def test_batch_is_answered_with_its_jobs_in_the_order_of_its_items(stage: Stage) -> None:
    names = [f"item-{number}" for number in (3, 1, 2)]

    answer = post(stage, [an_item(name, text=name) for name in names])

    body = answer.body
    assert answer.status == 202
    assert answer.headers["location"] == body["urls"]["self"] == f"/v1/batches/{body['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert (body["object"], body["status"]) == ("batch", "in_progress")
    assert body["created_at"] == "2026-01-01T00:00:00.000Z"
    assert body["request_counts"] == {
        "total": 3,
        "completed": 0,
        "failed": 0,
        "cancelled": 0,
        "in_progress": 3,
    }
    assert body["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost": 0, "saved": 0}
    assert [one["custom_id"] for one in body["data"]] == names
    assert {one["job"]["status"] for one in body["data"]} == {"queued"}
    assert sorted(stage.sent) == sorted(("batch", "acme", job_id) for job_id in jobs_of(answer))


def test_each_result_belongs_to_its_item_in_whatever_order_the_jobs_end(  # case C13, C14
    stage: Stage,
) -> None:
    submitted = post(stage, [an_item(str(number), text=f"prompt {number}") for number in range(7)])
    usual = stage.vendor.default
    assert isinstance(usual, VendorAnswer)
    for number in (6, 2, 0, 5, 1, 4, 3):
        stage.vendor.default = usual._replace(text=f"answer {number}")
        stage.run_job(jobs_of(submitted)[number])

    fetched = get(stage, submitted.body["id"])

    assert fetched.status == 200
    assert fetched.body["status"] == "completed"
    assert "retry-after" not in fetched.headers
    assert [(one["custom_id"], one["job"]["result"]["text"]) for one in fetched.body["data"]] == [
        (str(number), f"answer {number}") for number in range(7)
    ]


def test_job_in_a_batch_is_as_it_is_alone(stage: Stage) -> None:
    batch = post(stage, [an_item(metadata={"order": "7"})])
    (job_id,) = jobs_of(batch)
    waiting = stage.get(job_id).body
    stage.run_job(job_id)

    fetched = get(stage, batch.body["id"])

    assert batch.body["data"][0]["job"] == waiting
    assert fetched.body["data"][0]["job"] == stage.get(job_id).body


def test_lane_of_an_item_is_batch_unless_it_says_otherwise(stage: Stage) -> None:
    answer = post(
        stage,
        [
            an_item("a", "1"),
            an_item("b", "2", priority=None),
            an_item("c", "3", priority="interactive"),
            an_item("d", "4", priority="batch"),
        ],
    )

    lanes = [one["job"]["priority"] for one in answer.body["data"]]
    assert lanes == ["batch", "batch", "interactive", "batch"]


def test_equal_items_share_the_job_of_the_first(stage: Stage) -> None:
    answer = post(
        stage,
        [
            an_item("a", "same", metadata={"from": "a"}),
            an_item("b", "other"),
            an_item("c", "same", metadata={"from": "c"}),
            an_item("d", "same", priority="interactive"),
        ],
    )

    jobs = [one["job"] for one in answer.body["data"]]
    assert jobs[0]["id"] == jobs[2]["id"] == jobs[3]["id"] != jobs[1]["id"]
    assert [job["deduplicated"] for job in jobs] == [False, False, True, True]
    assert jobs[0]["metadata"] == {"from": "a"}
    assert {jobs[number]["priority"] for number in (0, 2, 3)} == {"interactive"}
    assert len(stage.world.jobs) == 2
    assert get(stage, answer.body["id"]).body["data"] == answer.body["data"]


def test_item_attaches_to_a_job_that_is_open(stage: Stage) -> None:
    job_id = stage.submit("hello").body["id"]

    answer = post(stage, [an_item()])

    job = answer.body["data"][0]["job"]
    assert (job["id"], job["deduplicated"], job["priority"]) == (job_id, True, "interactive")


def test_items_that_differ_in_what_they_ask_of_the_cache_have_jobs_of_their_own(
    stage: Stage,
) -> None:
    wishes: list[dict[str, Any]] = [
        {},
        {"mode": "bypass"},
        {"mode": "refresh"},
        {"no_store": True},
        {"max_age_s": 5},
    ]

    answer = post(
        stage,
        [an_item(str(number), cache=wish) for number, wish in enumerate(wishes)],
        scopes="submit bypass",
    )

    ids = jobs_of(answer)
    assert len(set(ids[:4])) == 4
    assert ids[4] == ids[0]


# ------------------------------------------------------------------ hits


def test_batch_of_hits_new_work_and_duplicates_is_told_apart(stage: Stage) -> None:  # case C13, C15
    cached(stage, "known")

    answer = post(
        stage,
        [
            an_item("new-b", "b"),
            an_item("known", "known"),
            an_item("new-c", "c"),
            an_item("again-b", "b"),
            an_item("again-known", "known"),
        ],
    )

    jobs = [one["job"] for one in answer.body["data"]]
    assert jobs[0]["id"] == jobs[3]["id"] != jobs[2]["id"]
    assert [job["id"].partition("_")[0] for job in jobs] == ["job", "hit", "job", "job", "hit"]
    assert jobs[1]["result"]["text"] == "a good answer"
    assert jobs[1]["cache"] == {"status": "hit", "age_s": 0, "stale": False}
    assert answer.body["request_counts"] == {
        "total": 5,
        "completed": 2,
        "failed": 0,
        "cancelled": 0,
        "in_progress": 3,
    }
    assert len(stage.sent) == 1 + 2


def test_usage_counts_what_is_shared_once_and_what_hits_save(stage: Stage) -> None:  # case C15
    cached(stage, "known")
    answer = post(
        stage,
        [
            an_item("a", "b"),
            an_item("b", "known"),
            an_item("c", "b"),
            an_item("d", "known"),
            an_item("e", "c"),
            an_item("f", model="nothing"),
        ],
    )
    for job_id in {*jobs_of(answer)} & {job for _, _, job in stage.sent}:
        stage.run_job(job_id)

    fetched = get(stage, answer.body["id"])

    assert answer.body["usage"] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cost": 0,
        "saved": 0.00033,
    }
    assert fetched.body["usage"] == {
        "input_tokens": 30,
        "output_tokens": 60,
        "cost": 0.00066,
        "saved": 0.00033,
    }


def test_hit_is_told_again_without_its_result_which_its_id_gives(stage: Stage) -> None:
    cached(stage, "known")
    answer = post(stage, [an_item("a", "known")])
    stage.clock.advance(s=60)

    fetched = get(stage, answer.body["id"])

    first, again = answer.body["data"][0]["job"], fetched.body["data"][0]["job"]
    assert again == {name: value for name, value in first.items() if name != "result"}
    assert stage.get(again["id"]).body["result"] == first["result"]


def test_stale_hit_says_so_and_queues_its_refresh(stage: Stage) -> None:
    cached(stage, "known")
    (entry,) = stage.world.entries.values()
    stage.clock.set(entry.soft_expires_at_epoch_ms)

    answer = post(stage, [an_item("a", "known"), an_item("b", "known")])

    assert [one["job"]["cache"]["status"] for one in answer.body["data"]] == ["stale", "stale"]
    assert [tenant.partition("#")[0] for _, tenant, _ in stage.sent] == ["acme", "refresh"]


def test_hit_with_a_big_result_is_told_with_its_address(stage: Stage) -> None:
    cached(stage, "known")
    (entry,) = stage.world.entries.values()
    assert entry.result.inline is not None
    stage.payloads.put("results/1", entry.result.inline)
    stage.world.entries[entry.cache_key] = replace(entry, result=Payload(ref="results/1"))

    answer = post(stage, [an_item("a", "known")])

    job = answer.body["data"][0]["job"]
    assert job["result_url"] == stage.payloads.url("results/1")
    assert "result" not in job


# ------------------------------------------------------------------ items that are wrong


def test_what_is_wrong_within_an_item_is_its_own_error(stage: Stage) -> None:
    answer = post(
        stage,
        [
            an_item("good", "1"),
            {"custom_id": "empty"},
            an_item("member", "2", unknown=1),
            an_item("model", "3", model="nothing"),
            an_item("cost", "4", max_cost=0.0),
            an_item("scope", "5", cache={"mode": "bypass"}),
            an_item("miss", "6", cache={"mode": "only"}),
            an_item("callback", "7", callback_url="http://127.0.0.1/"),
            an_item("late-good", "8"),
        ],
    )

    assert answer.status == 202
    assert codes_of(answer) == [
        None,
        "validation_failed",
        "validation_failed",
        "model_not_found",
        "cost_limit",
        "forbidden",
        "cache_miss",
        "validation_failed",
        None,
    ]
    empty = answer.body["data"][1]["error"]
    assert (empty["retryable"], "retry_after_s" in empty) == (False, False)
    assert {fault["field"] for fault in empty["errors"]} == {"model", "input"}
    assert answer.body["request_counts"]["failed"] == 7
    assert len(stage.world.jobs) == 2
    assert get(stage, answer.body["id"]).body["data"] == answer.body["data"]


def test_batch_whose_items_all_failed_is_completed(stage: Stage) -> None:
    answer = post(stage, [an_item("a", model="nothing"), an_item("b", x=1)])

    fetched = get(stage, answer.body["id"])

    assert (answer.status, fetched.status) == (202, 200)
    assert answer.body["status"] == fetched.body["status"] == "completed"
    assert answer.body["request_counts"]["failed"] == 2
    assert "retry-after" not in answer.headers
    assert stage.world.jobs == {}


def test_quota_refuses_the_items_that_have_no_place(stage: Stage) -> None:
    answer = post(stage, [an_item(str(n), str(n)) for n in range(5)], tenant="small")

    refused = [one["error"] for one in answer.body["data"] if "error" in one]
    assert len(jobs_of(answer)) == 2
    assert {(one["code"], one["retryable"]) for one in refused} == {("quota_exceeded", True)}
    assert all(one["retry_after_s"] >= 1 for one in refused)


def test_rate_counts_each_item_and_the_answer_says_where_it_stands(stage: Stage) -> None:
    tenants = {"acme": Tenant(requests_per_minute=3)}
    stage.catalogue = CATALOGUE.model_copy(update={"tenants": tenants})

    answer = post(stage, [an_item(str(n), str(n)) for n in range(5)])

    assert sorted(map(str, codes_of(answer))) == ["None"] * 3 + ["rate_limited"] * 2
    assert answer.headers["ratelimit"].startswith('"minute";r=0;')
    assert answer.headers["ratelimit-policy"] == '"minute";q=3;w=60'


def test_degraded_mode_refuses_what_can_wait(stage: Stage) -> None:
    stage.world.degraded_since_epoch_ms = stage.clock.now_ms()

    answer = post(stage, [an_item("a", "1"), an_item("b", "2", priority="interactive")])

    assert codes_of(answer) == ["degraded", None]
    assert answer.body["data"][0]["error"]["retry_after_s"] == 60


def test_busy_tables_are_the_error_of_the_item_that_met_them(stage: Stage) -> None:
    class BusyOnce(InMemoryJobs):
        def submit(self, job: Any, **named: Any) -> Any:
            if job.metadata.get("is") == "unlucky":
                raise StoreBusyError("The tables are busy.", retry_after_s=1)
            return super().submit(job, **named)

    stage.jobs = BusyOnce(stage.world, clock=stage.clock)

    answer = post(
        stage, [an_item("a", "1"), an_item("b", "2", metadata={"is": "unlucky"}), an_item("c", "3")]
    )

    assert codes_of(answer) == [None, "degraded", None]


def test_unexpected_error_is_that_of_its_item_without_its_text(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(InMemoryCache):
        def look(self, cache_key: str) -> Found:
            if len(stage.world.jobs) == 0:
                raise RuntimeError("SECRET")
            return super().look(cache_key)

    stage.cache = Broken(stage.world)

    answer = post(stage, [an_item("a", "1")])

    assert codes_of(answer) == ["internal"]
    assert answer.body["data"][0]["error"]["retryable"] is True
    assert "SECRET" not in answer.text
    lines = log_lines(output(capsys))
    assert [one["error_class"] for one in lines if "error_class" in one] == ["RuntimeError"]
    assert "SECRET" not in json.dumps(lines)


def test_refusals_of_a_batch_fit_into_its_row_and_repeat_no_text(stage: Stage) -> None:
    long = {f"{number:03d}\U0001f600" * 20: "SECRET" for number in range(90)}

    answer = post(stage, [{"custom_id": f"{n:064d}", **long} for n in range(10)])

    assert set(codes_of(answer)) == {"validation_failed"}
    assert "SECRET" not in answer.text
    assert all(one["error"]["errors"] for one in answer.body["data"])
    assert len(answer.text.encode()) < 10 * 4_000


# ------------------------------------------------------------------ the envelope


@pytest.mark.parametrize(
    "body",
    [
        [],
        "jobs",
        None,
        {},
        {"jobs": None},
        {"jobs": {}},
        {"jobs": []},
        {"jobs": [an_item()], "model": "demo-chat"},
        {"jobs": [an_item(str(number)) for number in range(101)]},
        {"jobs": [an_item(), "text"]},
        {"jobs": [an_item(), None]},
        {"jobs": [an_item(), []]},
        {"jobs": [{"model": "demo-chat", "input": "hello"}]},
        {"jobs": [an_item(), an_item("b"), an_item("a", "another")]},
        *(
            {"jobs": [an_item(), an_item(custom_id)]}  # type: ignore[arg-type]
            for custom_id in ("", "x" * 65, "a b", "a\n", "a\x00", "é", 7, None, ["a"])
        ),
    ],
    ids=lambda body: json.dumps(body)[:40],
)
def test_envelope_that_is_wrong_is_refused_whole(stage: Stage, body: Any) -> None:
    answer = post(stage, None, body=body)

    assert_problem(answer, 422, "validation_failed")
    assert_nothing_happened(stage)
    assert stage.world.batches == {}


def test_repeated_custom_id_is_told_by_its_place(stage: Stage) -> None:
    answer = post(stage, [an_item("SECRET"), an_item("b"), an_item("SECRET", "another")])

    assert answer.body["errors"] == [{"field": "jobs", "message": "2 has the custom_id of 0"}]


def test_batch_of_as_many_jobs_as_there_may_be_is_taken(stage: Stage) -> None:
    answer = post(stage, [an_item("~" * 61 + f"{n:03d}", text=str(n)) for n in range(100)])

    assert answer.status == 202
    assert len(set(jobs_of(answer))) == 100
    assert get(stage, answer.body["id"]).body == answer.body


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        ("{", 400, "invalid_request"),
        ('{"jobs": [], "jobs": []}', 400, "invalid_request"),
        (json.dumps({"jobs": [an_item(text="x" * 1024 * 1024)]}), 413, "payload_too_large"),
    ],
)
def test_body_is_read_as_that_of_a_submit(stage: Stage, raw: str, status: int, code: str) -> None:
    event = request("POST", "/batches")
    event["body"] = raw

    assert_problem(stage.answer(event), status, code)
    assert_nothing_happened(stage)


def test_correlation_id_that_is_none_refuses_the_whole(stage: Stage) -> None:
    answer = post(stage, [an_item()], headers={"X-Correlation-Id": "a b"})

    assert_problem(answer, 400, "invalid_request")
    assert_nothing_happened(stage)


@pytest.mark.parametrize("query", [{"dry_run": "true"}, {"x": "1"}])
def test_batches_take_no_query_parameters(stage: Stage, query: dict[str, str]) -> None:
    assert_problem(post(stage, [an_item()], query=query), 400, "invalid_request")
    assert_problem(get(stage, BATCH_ID, query=query), 400, "invalid_request")
    assert_nothing_happened(stage)


@pytest.mark.parametrize("scopes", ["", "read", "cancel bypass admin"])
def test_batch_needs_the_scope_of_a_submit(stage: Stage, scopes: str) -> None:
    assert_problem(post(stage, [an_item()], scopes=scopes), 403, "forbidden")
    assert_nothing_happened(stage)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_fetching_a_batch_needs_the_scope_of_a_fetch(stage: Stage, method: str) -> None:
    batch_id = post(stage, [an_item()]).body["id"]

    assert get(stage, batch_id, method, scopes="submit cancel").status == 403


# ------------------------------------------------------------------ fetch


def test_batch_is_fetched_as_it_was_answered(stage: Stage) -> None:
    cached(stage, "known")
    answer = post(stage, [an_item("a", "1"), an_item("b", "2"), an_item("c", model="nothing")])

    fetched = get(stage, answer.body["id"])

    assert fetched.status == 200
    assert fetched.body == answer.body
    assert fetched.headers["retry-after"] == answer.headers["retry-after"]


def test_head_of_a_batch_is_its_get_without_the_body(stage: Stage) -> None:
    batch_id = post(stage, [an_item()]).body["id"]

    fetched, head = get(stage, batch_id), get(stage, batch_id, "HEAD")

    assert (head.status, head.headers, head.text) == (200, fetched.headers, "")


def test_counts_follow_the_states_of_the_jobs(stage: Stage) -> None:
    answer = post(stage, [an_item(str(n), str(n)) for n in range(7)])
    for job_id, status in zip(jobs_of(answer), JobStatus, strict=False):
        end(stage, job_id, status=status)

    fetched = get(stage, answer.body["id"])

    assert len(JobStatus) == 7
    assert fetched.body["status"] == "in_progress"
    assert fetched.body["request_counts"] == {
        "total": 7,
        "completed": 1,
        "failed": 2,
        "cancelled": 1,
        "in_progress": 3,
    }


def test_cancelled_job_of_a_batch_is_counted_as_one(stage: Stage) -> None:
    answer = post(stage, [an_item()])
    stage.cancel(jobs_of(answer)[0])

    fetched = get(stage, answer.body["id"])

    assert fetched.body["status"] == "completed"
    assert fetched.body["request_counts"]["cancelled"] == 1


def test_anothers_batch_is_exactly_like_an_unknown_one(stage: Stage) -> None:
    batch_id = post(stage, [an_item()]).body["id"]

    anothers = get(stage, batch_id, tenant="globex")
    unknown = get(stage, BATCH_ID, tenant="globex")

    assert anothers == unknown
    assert_problem(anothers, 404, "batch_not_found")


@pytest.mark.parametrize(
    "batch_id",
    ["x", "batch_", "batch_1", BATCH_ID + "A", BATCH_ID.lower(), "job_01KDVT7V00000000000000000A"],
)
def test_id_that_no_batch_can_have_is_like_an_unknown_one(stage: Stage, batch_id: str) -> None:
    assert get(stage, batch_id).body == get(stage, BATCH_ID).body
    assert_problem(get(stage, batch_id), 404, "batch_not_found")


def test_batch_is_in_no_list_of_jobs_and_no_job(stage: Stage) -> None:
    answer = post(stage, [an_item()])

    listed = stage.answer(request("GET", "/jobs"))

    assert [one["id"] for one in listed.body["data"]] == jobs_of(answer)
    assert_problem(stage.get(answer.body["id"]), 404, "job_not_found")
    assert_problem(stage.cancel(answer.body["id"]), 404, "job_not_found")


def test_anothers_equal_items_are_its_own(stage: Stage) -> None:
    ours, theirs = post(stage, [an_item()]), post(stage, [an_item()], tenant="globex")

    assert jobs_of(ours) != jobs_of(theirs)
    assert get(stage, theirs.body["id"], tenant="globex").status == 200


def test_batch_lives_as_long_as_its_longest_job(stage: Stage) -> None:
    answer = post(stage, [an_item("a", "1", deadline_s=60), an_item("b", "2", deadline_s=604_800)])
    ends_s = max(job.ttl_epoch_s for job in stage.world.jobs.values())

    stage.clock.set(ends_s * 1000 - 1)
    before = get(stage, answer.body["id"])
    stage.clock.set(ends_s * 1000)
    after = get(stage, answer.body["id"])

    assert before.status == 200
    assert_problem(after, 404, "batch_not_found")


def test_job_that_is_gone_is_the_error_of_its_item(stage: Stage) -> None:
    answer = post(stage, [an_item("a", "1"), an_item("b", "2")])
    del stage.world.jobs["acme", jobs_of(answer)[0]]

    fetched = get(stage, answer.body["id"])

    assert codes_of(fetched) == ["job_not_found", None]
    assert fetched.body["request_counts"]["failed"] == 1


def test_result_past_its_retention_is_left_out(stage: Stage) -> None:
    answer = post(stage, [an_item()])
    (job_id,) = jobs_of(answer)
    stage.run_job(job_id)
    retained_ms = CATALOGUE.service.result_retention_h * 3_600_000

    stage.clock.advance(retained_ms)
    before = get(stage, answer.body["id"])
    stage.clock.advance(1)
    after = get(stage, answer.body["id"])

    assert before.body["data"][0]["job"]["result"]["text"] == "a good answer"
    assert "result" not in after.body["data"][0]["job"]
    assert after.body["usage"] == before.body["usage"]
    assert stage.get(job_id).status == 410


def test_big_result_is_told_with_its_address(stage: Stage) -> None:
    answer = post(stage, [an_item()])
    (job_id,) = jobs_of(answer)
    stage.run_job(job_id)
    end(stage, job_id, result=Payload(ref="results/1"))

    fetched = get(stage, answer.body["id"])

    job = fetched.body["data"][0]["job"]
    assert job["result_url"] == stage.payloads.url("results/1")
    assert "result" not in job


def test_damaged_result_is_left_out_and_the_others_are_told(stage: Stage) -> None:
    answer = post(stage, [an_item("a", "1"), an_item("b", "2")])
    for job_id in jobs_of(answer):
        stage.run_job(job_id)
    end(stage, jobs_of(answer)[0], result=Payload(inline=b"damaged"))

    fetched = get(stage, answer.body["id"])

    assert ["result" in one["job"] for one in fetched.body["data"]] == [False, True]


@pytest.mark.parametrize("characters", [500_000, 1_000_000])
def test_reply_that_would_be_too_large_is_told_without_its_results(
    stage: Stage, characters: int
) -> None:
    answer = post(stage, [an_item(str(n), str(n)) for n in range(12)])
    result = packed({"text": "x" * characters, "finish_reason": "stop"})
    for job_id in jobs_of(answer):
        stage.run_job(job_id)
        end(stage, job_id, result=result)

    fetched = get(stage, answer.body["id"])

    assert [one["job"]["status"] for one in fetched.body["data"]] == ["completed"] * 12
    assert not any("result" in one["job"] for one in fetched.body["data"])
    assert stage.get(jobs_of(answer)[0]).body["result"]["text"] == "x" * characters


def test_reply_that_metadata_make_too_large_is_told_without_them(stage: Stage) -> None:
    metadata = {f"{number:02d}": "\U0001f600" * 512 for number in range(16)}
    items = [an_item(str(n), metadata=metadata if n == 0 else {}) for n in range(100)]

    answer = post(stage, items)

    assert answer.status == 202
    assert len(json.dumps(answer.text)) < LAMBDA_ANSWER_BYTES
    assert not any("metadata" in one["job"] for one in answer.body["data"])


# ------------------------------------------------------------------ waiting


def test_submit_of_a_batch_waits_until_its_jobs_have_ended(stage: Stage) -> None:
    cached(stage, "known")
    ran: list[str] = []

    def pause(seconds: float) -> None:
        stage.clock.advance(s=seconds)
        waiting = [job_id for _, _, job_id in stage.sent[1:] if job_id not in ran]
        ran.extend(waiting[:1])
        stage.run_job(ran[-1])

    stage.pause = pause

    answer = post(
        stage,
        [an_item("a", "1"), an_item("b", "known"), an_item("c", "2")],
        headers={"Prefer": "wait=20"},
    )

    assert answer.status == 202
    assert answer.body["status"] == "completed"
    assert {one["job"]["result"]["text"] for one in answer.body["data"]} == {"a good answer"}
    assert answer.headers["preference-applied"] == "wait=20"
    assert answer.headers["location"] == f"/v1/batches/{answer.body['id']}"
    assert "retry-after" not in answer.headers
    assert len(ran) == 2


def test_wait_for_a_batch_ends_when_it_is_over(stage: Stage) -> None:
    begun_ms = stage.clock.now_ms()

    answer = post(stage, [an_item()], headers={"Prefer": "wait=3"})
    waited_ms = stage.clock.now_ms() - begun_ms
    fetched = get(stage, answer.body["id"], headers={"Prefer": "wait=2"})

    assert (answer.status, answer.body["status"], waited_ms) == (202, "in_progress", 3000)
    assert stage.clock.now_ms() - begun_ms == 5000
    assert fetched.body["status"] == "in_progress"
    assert fetched.headers["preference-applied"] == "wait=2"
    assert int(fetched.headers["retry-after"]) >= 1


# ------------------------------------------------------------------ sending again


def test_batch_is_sent_again_with_its_key(stage: Stage) -> None:
    items = [an_item("a", "1"), an_item("b", "2"), an_item("c", model="nothing")]
    headers = {"Idempotency-Key": "batch-1"}
    first = post(stage, items, headers=headers)
    for job_id in jobs_of(first):
        stage.run_job(job_id)

    again = post(stage, items, headers=headers)

    assert again.status == 202
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert again.body == get(stage, first.body["id"]).body
    assert again.body["status"] == "completed"
    assert len(stage.world.jobs) == 2
    assert len(stage.world.batches) == 1


def test_key_of_a_batch_with_another_body_is_refused(stage: Stage) -> None:
    headers = {"Idempotency-Key": "batch-1"}
    post(stage, [an_item("a")], headers=headers)

    answer = post(stage, [an_item("b")], headers=headers)

    assert_problem(answer, 422, "idempotency_key_reused")


def test_key_of_a_submit_is_none_of_a_batch(stage: Stage) -> None:
    headers = {"Idempotency-Key": "one"}
    stage.submit("hello", headers=headers)

    answer = post(stage, [an_item()], headers=headers)

    assert answer.status == 202
    assert "idempotent-replayed" not in answer.headers


def test_batch_that_could_not_be_kept_is_sent_again_and_finds_its_jobs(stage: Stage) -> None:
    class Busy(InMemoryBatches):
        def add(self, _: Batch) -> None:
            raise StoreBusyError("The tables are busy.", retry_after_s=1)

    items, headers = [an_item("a", "1"), an_item("b", "2")], {"Idempotency-Key": "one"}
    stage.batches = Busy(stage.world)
    failed = post(stage, items, headers=headers)
    stage.batches = InMemoryBatches(stage.world)

    answer = post(stage, items, headers=headers)

    assert_problem(failed, 503, "degraded")
    assert answer.status == 202
    assert [one["job"]["deduplicated"] for one in answer.body["data"]] == [True, True]
    assert len(stage.world.jobs) == 2


# ------------------------------------------------------------------ telling


def test_items_are_counted_and_logged_as_submits_are(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    cached(stage, "known")
    output(capsys)

    answer = post(
        stage,
        [
            *(an_item(f"new-{number}", f"new {number}") for number in range(20)),
            an_item("again", "new 0"),
            an_item("hit", "known"),
            an_item("bad", model="nothing"),
        ],
    )

    written = output(capsys)
    lines = log_lines(written)
    of_batch = {line["batch_id"] for line in lines}
    names = sorted(line["message"] for line in lines)
    metrics = [name for line in metric_lines(written) for name in line if name[0].isupper()]
    submitted = [line for line in lines if line["message"] == "job_submitted"]
    assert of_batch == {answer.body["id"]}
    assert names == sorted(
        ["job_submitted"] * 20
        + ["job_deduplicated", "cache_hit", "request_refused", "batch_submitted"]
        + ["cache_miss"] * 20
    )
    assert {line["job_id"] for line in submitted} == set(jobs_of(answer)[:20])
    assert [
        {name: line[name] for name in ("items", "jobs", "hits", "refused", "tenant")}
        for line in lines
        if line["message"] == "batch_submitted"
    ] == [{"items": 23, "jobs": 20, "hits": 1, "refused": 1, "tenant": "acme"}]
    assert metrics.count("JobsSubmitted") == 20
    assert metrics.count("CacheMiss") == 20
    assert metrics.count("CacheHit") == metrics.count("JobsDeduplicated") == 1
    assert {tuple(line["CacheMiss"]) for line in metric_lines(written) if "CacheMiss" in line} == {
        (1.0,)
    }


def test_send_that_failed_in_a_thread_is_accepted_all_the_same(stage: Stage) -> None:
    stage.queue = InMemoryQueue()
    stage.queue.broken = True

    answer = post(stage, [an_item(str(n), str(n)) for n in range(5)])

    assert len(jobs_of(answer)) == 5


def test_lines_of_the_next_request_are_not_about_the_batch(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    post(stage, [an_item()])
    output(capsys)

    stage.submit("another")

    assert not [line for line in log_lines(output(capsys)) if "batch_id" in line]

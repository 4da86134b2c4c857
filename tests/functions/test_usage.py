"""GET /usage: what the caller's jobs came to, event in and answer out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sluiceway.domain.errors import VendorError

from tests.fakes.in_memory import NOW_MS
from tests.functions.stage import ABSENT, request

if TYPE_CHECKING:
    from tests.functions.stage import Answer, Stage

DAY_S = 24 * 3600


def usage(stage: Stage, tenant: str = "acme", **query: str) -> Answer:
    return stage.answer(request("GET", "/usage", tenant=tenant, scopes="read", query=query or None))


def ran(stage: Stage, text: str, tenant: str = "acme") -> None:
    """A job of this tenant that was submitted and run."""
    job_id = stage.submit(text, tenant=tenant).body["id"]
    stage.run_job(job_id, tenant)


def test_usage_is_a_list_of_days_and_models_newest_first(stage: Stage) -> None:
    ran(stage, "one")
    ran(stage, "two")
    stage.vendor.script.append(VendorError("vendor_rejected", "No.", retryable=False))
    ran(stage, "three")
    stage.clock.advance(s=DAY_S)
    stage.cancel(stage.submit("four").body["id"])

    answer = usage(stage)

    paid = stage.get(next(job_id for _, job_id in stage.world.jobs)).body["usage"]
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.body == {
        "object": "list",
        "from": "2025-12-03",
        "to": "2026-01-02",
        "data": [
            {
                "date": "2026-01-02",
                "model": "demo-chat",
                "completed": 0,
                "failed": 0,
                "cancelled": 1,
                "from_cache": 0,
                "input_tokens": 0,
                "output_tokens": 0,
                "cost": 0.0,
                "saved": 0.0,
            },
            {
                "date": "2026-01-01",
                "model": "demo-chat",
                "completed": 2,
                "failed": 1,
                "cancelled": 0,
                "from_cache": 0,
                "input_tokens": 2 * paid["input_tokens"],
                "output_tokens": 2 * paid["output_tokens"],
                "cost": pytest.approx(2 * paid["cost"]),
                "saved": 0.0,
            },
        ],
    }
    assert answer.body["data"][1]["cost"] > 0


def test_hit_that_made_no_job_is_in_no_usage(stage: Stage) -> None:
    ran(stage, "one")
    before = usage(stage).body

    assert stage.submit("one").status == 200

    assert usage(stage).body == before


def test_tenant_sees_nothing_of_anothers_usage(stage: Stage) -> None:
    ran(stage, "one", "acme")

    assert usage(stage, "globex").body["data"] == []
    assert len(usage(stage, "acme").body["data"]) == 1


def test_period_is_echoed_and_both_days_belong_to_it(stage: Stage) -> None:
    ran(stage, "one")

    answers = [
        usage(stage, **{"from": first, "to": last}).body
        for first, last in (
            ("2026-01-01", "2026-01-01"),
            ("2025-12-31", "2026-03-31"),
            ("2025-12-01", "2025-12-31"),
        )
    ]

    assert [(one["from"], one["to"], len(one["data"])) for one in answers] == [
        ("2026-01-01", "2026-01-01", 1),
        ("2025-12-31", "2026-03-31", 1),
        ("2025-12-01", "2025-12-31", 0),
    ]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-02-30"}, "to"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "from"),
        ({"from": "2025-01-01"}, "from"),
        ({"model": "demo-chat"}, "model"),
    ],
)
def test_parameter_that_is_wrong_is_refused_by_its_name(
    stage: Stage, query: dict[str, str], named: str
) -> None:
    answer = usage(stage, **query)

    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert named in answer.body["detail"].rstrip(".").split()


def test_parameter_that_comes_twice_is_refused(stage: Stage) -> None:
    event = request("GET", "/usage", query={"to": "2026-01-02"})
    event["multiValueQueryStringParameters"] = {"to": ["2026-01-01", "2026-01-02"]}

    assert stage.answer(event).status == 400


@pytest.mark.parametrize(
    ("tenant", "scopes", "status"),
    [("acme", "submit cancel", 403), (ABSENT, "read", 401), ("acme", "read", 200)],
)
def test_usage_takes_a_key_that_may_read(
    stage: Stage, tenant: object, scopes: str, status: int
) -> None:
    answer = stage.answer(request("GET", "/usage", tenant=tenant, scopes=scopes))

    assert answer.status == status


def test_usage_has_get_and_head(stage: Stage) -> None:
    ran(stage, "one")

    got, head, post = (
        stage.answer(request(method, "/usage", scopes="read")) for method in ("GET", "HEAD", "POST")
    )

    assert (head.status, head.text, head.headers) == (200, "", got.headers)
    assert (post.status, post.headers["allow"]) == (405, "GET, HEAD")


def test_default_period_ends_today_in_utc(stage: Stage) -> None:
    stage.clock.set(NOW_MS - 1)

    assert usage(stage).body["to"] == "2025-12-31"

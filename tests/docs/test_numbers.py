"""Numbers of the code that depend on each other, as docs/architecture.md lists them.

Those that the template sets are in tests/template.
"""

from __future__ import annotations

from dataclasses import replace

from sluiceway import bootstrap
from sluiceway.adapters import dynamodb, dynamodb_jobs, http_vendors
from sluiceway.domain import backoff, job, lease, payload, request
from sluiceway.domain.payload import Payload
from sluiceway.http import MAX_REPLY_BYTES

from tests.fakes.examples import a_job, an_error

DAY_S = 24 * 3600
SQS_LONGEST_RETENTION_S = 14 * DAY_S
SQS_LONGEST_VISIBILITY_S = 12 * 3600
LAMBDA_LONGEST_RUN_S = 900
LAMBDA_REPLY_BYTES = 6 * 1024 * 1024
GATEWAY_WAITS_S = 29
DYNAMODB_ITEM_BYTES = 400 * 1024


def test_claim_outlives_its_jobs_deadline() -> None:
    margin_ms = job.CLAIM_OUTLIVES_DEADLINE_MS

    assert margin_ms > 2 * lease.CLOCK_SKEW_MS


def test_job_row_outlives_its_dead_letter_and_a_redrive() -> None:
    needed_s = SQS_LONGEST_RETENTION_S + request.MAX_DEADLINE_S

    assert needed_s < job.ROW_OUTLIVES_DEADLINE_S


def test_fence_outlives_every_job_that_knows_it() -> None:
    longest_s = request.MAX_DEADLINE_S + job.ROW_OUTLIVES_DEADLINE_S

    assert longest_s < lease.ROW_OUTLIVES_LEASE_S


def test_longest_return_fits_into_the_longest_visibility() -> None:
    longest_s = backoff.MAX_VISIBILITY_S + LAMBDA_LONGEST_RUN_S

    assert longest_s <= SQS_LONGEST_VISIBILITY_S


def test_lost_connections_are_given_up_within_a_request() -> None:
    config = bootstrap._STORE_CONFIG

    one_try_s = config.connect_timeout + config.read_timeout
    longest_s = dynamodb.MAX_LOST * config.retries["total_max_attempts"] * one_try_s

    assert longest_s < GATEWAY_WAITS_S


def test_largest_job_row_fits_into_an_item() -> None:
    texts = {f"{number:02d}" + "n" * 62: "\U0001f600" * 512 for number in range(16)}
    errors = tuple(an_error(message="m" * 256) for _ in range(job.LAST_ERRORS))
    largest = replace(
        a_job(),
        input=Payload(inline=b"x" * payload.INLINE_INPUT_BYTES),
        result=Payload(inline=b"x" * payload.INLINE_RESULT_BYTES),
        metadata=texts,
        correlation_id="c" * 128,
        trace_header="t" * 1024,
        error=errors[0],
        last_errors=errors,
    )

    values = dynamodb_jobs._values_of(largest)

    # A generous measure: every value as text, and the name of every attribute.
    assert sum(len(name) + _size(value) for name, value in values.items()) < DYNAMODB_ITEM_BYTES


def test_largest_reply_fits_into_what_lambda_returns() -> None:
    headers_bytes = 10 * 1024

    assert MAX_REPLY_BYTES + headers_bytes < LAMBDA_REPLY_BYTES


def test_largest_answer_can_be_unpacked_again() -> None:
    largest = http_vendors.MAX_ANSWER_BYTES

    assert largest < payload.MAX_PLAIN_BYTES


def _size(value: object) -> int:
    return len(value) if isinstance(value, bytes) else len(str(value).encode())

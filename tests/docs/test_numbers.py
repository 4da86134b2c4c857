"""Numbers of the code that depend on each other, as docs/architecture.md lists them.

Those that the template sets are in tests/template.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sluiceway import bootstrap, http
from sluiceway.adapters import (
    dynamodb,
    dynamodb_batches,
    dynamodb_gates,
    dynamodb_jobs,
    dynamodb_state,
    http_vendors,
    sqs_queue,
)
from sluiceway.domain import (
    backoff,
    catalogue,
    freshness,
    gate,
    job,
    lease,
    payload,
    request,
    ticket,
    webhook,
)
from sluiceway.domain.batch import Batch, BatchItem, Refusal
from sluiceway.domain.freshness import Freshness, KeptHit
from sluiceway.domain.payload import Payload
from sluiceway.http import MAX_REPLY_BYTES
from sluiceway.ports import VendorCall
from sluiceway.routes import openai
from sluiceway.usecases import submit_batch, sweep_jobs, wake_jobs

from tests.fakes.examples import a_job, an_error
from tests.template.rendering import RESOURCES, SOURCE

DAY_S = 24 * 3600
SQS_LONGEST_RETENTION_S = 14 * DAY_S
SQS_LONGEST_VISIBILITY_S = 12 * 3600
LAMBDA_LONGEST_RUN_S = 900
LAMBDA_REPLY_BYTES = 6 * 1024 * 1024
GATEWAY_WAITS_S = 29
DYNAMODB_ITEM_BYTES = 400 * 1024
DYNAMODB_BATCH_ITEMS = 100
DYNAMODB_MAP_BYTES = 3 + 3
"""Of a map with two members in a list, besides names and values."""
DYNAMODB_EXPRESSION_BYTES = 4 * 1024
INVALIDATED_WITHIN_S = 5
NOTICEABLE_S = 1


def test_claim_outlives_its_jobs_deadline() -> None:
    margin_ms = job.CLAIM_OUTLIVES_DEADLINE_MS

    assert margin_ms > 2 * lease.CLOCK_SKEW_MS


def test_job_row_outlives_its_dead_letter_and_a_redrive() -> None:  # case D02
    needed_s = SQS_LONGEST_RETENTION_S + request.MAX_DEADLINE_S

    assert needed_s < job.ROW_OUTLIVES_DEADLINE_S


def test_fence_outlives_every_job_that_knows_it() -> None:
    longest_s = request.MAX_DEADLINE_S + job.ROW_OUTLIVES_DEADLINE_S

    assert longest_s < lease.ROW_OUTLIVES_LEASE_S


def test_longest_return_fits_into_the_longest_visibility() -> None:
    longest_s = backoff.MAX_VISIBILITY_S + LAMBDA_LONGEST_RUN_S

    assert longest_s <= SQS_LONGEST_VISIBILITY_S


def test_waits_by_return_fit_into_the_longest_return() -> None:
    longest_s = max(job.LONGEST_RETURN_S, backoff.CONTENTION_MAX_S)

    assert longest_s < backoff.MAX_VISIBILITY_S


def test_lease_is_over_when_a_dead_workers_job_is_due() -> None:
    # A renewed lease ends with the function at the latest.
    assert job.FUNCTION_END_MARGIN_MS > lease.CLOCK_SKEW_MS


def test_lease_is_renewed_several_times_before_it_ends() -> None:
    defaults = VendorCall._field_defaults
    every_s: Any = defaults["ask_every_s"]
    leases = SOURCE["Mappings"]["RunJobTimings"].values()

    shortest_s = min(int(row["Lease"]) for row in leases) - lease.CLOCK_SKEW_MS / 1000

    assert 3 * every_s < shortest_s


def test_redrive_is_later_than_every_send_decided_before_the_failure() -> None:
    config = bootstrap.SEND_CONFIG

    longest_s = config.connect_timeout + config.read_timeout + job.SEND_STARTS_WITHIN_MS / 1000

    assert longest_s <= sqs_queue.SEND_LIMIT_S < job.REDRIVE_AFTER_FAILURE_MS / 1000


def test_leftover_reaches_the_dead_letter_queue_when_it_may_be_redriven() -> None:
    assert job.LAST_BOUNCE_AFTER_FAILURE_MS > job.REDRIVE_AFTER_FAILURE_MS


def test_receives_are_left_for_crashes_after_the_last_return() -> None:
    crashes = 4

    assert crashes <= job.MAX_RECEIVES - job.LAST_RETURN_RECEIVE


def test_sweep_looks_as_far_ahead_as_the_next_one_and_ends_before_it() -> None:
    sweeper = RESOURCES["SweepJobsFunction"]["Properties"]
    (schedule,) = sweeper["Events"].values()
    between_s = 60

    assert schedule["Properties"]["ScheduleExpression"] == "rate(1 minute)"
    assert between_s * 1000 <= sweep_jobs.LOOK_AHEAD_MS
    assert sweeper["Timeout"] < between_s


def test_sweep_has_time_for_its_jobs_after_it_measured() -> None:
    timeout_ms = RESOURCES["SweepJobsFunction"]["Properties"]["Timeout"] * 1000

    begun_ms = sweep_jobs.MEASURE_WITHIN_MS + wake_jobs.POLL_EVERY_MS

    assert begun_ms + sweep_jobs.STOP_BEFORE_END_MS < timeout_ms


def test_sweep_polls_more_often_than_a_worker_holds() -> None:
    assert catalogue.Service().hold_max_s * 1000 > wake_jobs.POLL_EVERY_MS


def test_kept_slot_lives_until_the_next_pass_of_a_sweep() -> None:
    assert ticket.SLOT_LIVES_MS >= wake_jobs.POLL_EVERY_MS


def test_jobs_behind_a_paused_gate_look_again_in_time() -> None:
    by_the_worker_ms, by_the_sweeper_ms = 2 * gate.PAUSE_LOOK_MS, sweep_jobs.LOOK_AHEAD_MS

    assert max(by_the_worker_ms, by_the_sweeper_ms) <= 90_000


def test_row_of_a_gate_is_written_less_often_than_a_partition_allows() -> None:
    partition_writes = 1_000
    takes = gate.SHARD_PER_MINUTE / 60

    assert takes < partition_writes
    assert gate.Limits(requests_per_minute=10 * gate.SHARD_PER_MINUTE).shards == 10


def test_emptying_places_of_the_dead_fits_into_an_expression() -> None:
    rooms = [gate.Room("vendor", name, 1_000) for name in ("all", "model:" + "m" * 200)]
    dead = {f"{number:032x}": 0 for number in range(1_000)}
    table: Any = None
    gates = dynamodb_gates.DynamoDBGates(table, "coordination")

    write = gates._enter_write("row", rooms, {room.name: dead for room in rooms}, "t", 1, 2)

    assert write.update is not None
    assert write.condition is not None
    assert len(write.update) < DYNAMODB_EXPRESSION_BYTES
    assert len(write.condition) < DYNAMODB_EXPRESSION_BYTES


def test_last_send_of_a_sweep_ends_before_its_function() -> None:
    assert sqs_queue.SEND_LIMIT_S * 1000 < sweep_jobs.STOP_BEFORE_END_MS


def test_delay_of_a_resent_message_is_one_that_sqs_takes() -> None:
    assert sweep_jobs.LOOK_AHEAD_MS <= sqs_queue.MAX_DELAY_S * 1000


def test_attempt_at_a_webhook_ends_before_its_function() -> None:
    function = RESOURCES["DeliverWebhookFunction"]["Properties"]

    assert function["Timeout"] > webhook.TIMEOUT_S


def test_attempts_at_a_webhook_end_before_its_retention() -> None:
    queue = RESOURCES["WebhookQueue"]["Properties"]

    waits_s = sum(webhook.retry_delay_s(receives, rand=1.0) for receives in range(1, 8))
    longest_s = waits_s + webhook.MAX_RECEIVES * webhook.TIMEOUT_S

    assert longest_s < queue["MessageRetentionPeriod"]


def test_webhook_is_moved_after_its_attempts() -> None:
    queue = RESOURCES["WebhookQueue"]["Properties"]

    assert queue["RedrivePolicy"]["maxReceiveCount"] == webhook.MAX_RECEIVES


def test_records_outlive_the_tries_to_publish_them() -> None:
    function = RESOURCES["PublishEventsFunction"]["Properties"]
    (stream,) = function["Events"].values()
    kept_s = DAY_S

    assert stream["Properties"]["MaximumRecordAgeInSeconds"] < kept_s


def test_lost_connections_are_given_up_within_a_request() -> None:
    config = bootstrap._STORE_CONFIG

    one_try_s = config.connect_timeout + config.read_timeout
    longest_s = dynamodb.MAX_LOST * config.retries["total_max_attempts"] * one_try_s

    assert longest_s < GATEWAY_WAITS_S


def test_noting_a_use_is_given_up_before_a_partner_minds() -> None:
    config = bootstrap._HASTY_CONFIG

    one_try_s = config.connect_timeout + config.read_timeout
    longest_s = config.retries["total_max_attempts"] * one_try_s

    assert longest_s <= NOTICEABLE_S < RESOURCES["AuthorizeFunction"]["Properties"]["Timeout"]


def test_answer_is_owed_for_longer_than_its_client_is_told_to_wait() -> None:
    assert http.LONGEST_POLL_S < openai.OWED_S


def test_largest_job_row_fits_into_an_item() -> None:
    texts = {f"{number:02d}" + "n" * 62: "\U0001f600" * 512 for number in range(16)}
    errors = tuple(an_error(message="m" * 256) for _ in range(job.LAST_ERRORS))
    largest = replace(
        a_job(),
        input=Payload(inline=b"x" * payload.INLINE_INPUT_BYTES),
        result=Payload(inline=b"x" * payload.LAST_RESORT_BYTES),
        metadata=texts,
        correlation_id="c" * 128,
        trace_header="t" * 1024,
        error=errors[0],
        last_errors=errors,
    )

    values = dynamodb_jobs._values_of(largest)

    # A generous measure: every value as text, and the name of every attribute.
    assert sum(len(name) + _size(value) for name, value in values.items()) < DYNAMODB_ITEM_BYTES


def test_largest_batch_row_fits_into_an_item() -> None:
    hit = KeptHit("c1_" + "k" * 43, "m" * 63, Freshness.EXPIRED, *[10**12] * 5)
    refusal = Refusal("c" * 32, "m" * 512, retry_after_s=10**6)
    faults = submit_batch.MAX_REFUSAL_BYTES + request.MAX_FAULTS_TOLD * DYNAMODB_MAP_BYTES
    for largest in (BatchItem("c" * 64, hit=hit), BatchItem("c" * 64, refusal=refusal)):
        values = dynamodb_batches._values_of(Batch("t" * 63, "b" * 32, 10**13, 10**10, (largest,)))

        item_bytes = _size(values["items"]) + faults

        assert request.MAX_BATCH_JOBS * item_bytes < DYNAMODB_ITEM_BYTES
    assert request.MAX_BATCH_JOBS <= DYNAMODB_BATCH_ITEMS


def test_row_of_a_day_outlives_every_job_of_the_day() -> None:
    day_s = 24 * 3600

    assert request.MAX_DEADLINE_S + day_s < dynamodb_jobs._DAY_ROW_S


def test_tombstone_outlives_every_job_that_was_open() -> None:
    assert freshness.TOMBSTONE_S > request.MAX_DEADLINE_S


def test_copy_of_the_state_is_given_up_within_5_s() -> None:
    # Its age counts from before its read, so the read's own time is part of it.
    assert dynamodb_state.COPY_LIVES_MS < INVALIDATED_WITHIN_S * 1000


def test_cool_down_grows_up_to_its_longest() -> None:
    waits_ms = [freshness.cool_down_ms(failures) for failures in range(1, 7)]

    assert waits_ms == [minutes * 60_000 for minutes in (1, 2, 4, 8, 15, 15)]


def test_largest_reply_fits_into_what_lambda_returns() -> None:
    headers_bytes = 10 * 1024

    assert MAX_REPLY_BYTES + headers_bytes < LAMBDA_REPLY_BYTES


def test_largest_answer_can_be_unpacked_again() -> None:
    largest = http_vendors.MAX_ANSWER_BYTES

    assert largest < payload.MAX_PLAIN_BYTES


def _size(value: object) -> int:
    return len(value) if isinstance(value, bytes) else len(str(value).encode())

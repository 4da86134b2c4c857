"""Numbers that depend on each other, for every value that the parameters allow."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from sluiceway import bootstrap
from sluiceway.adapters.sqs_queue import SEND_LIMIT_S
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.catalogue import Catalogue, Model, Vendor
from sluiceway.domain.job import MAX_RECEIVES
from sluiceway.routes.request import HOLD_ENDS_BEFORE_S, HOLD_S

from tests.template.rendering import (
    PARAMETERS,
    ROOT,
    SOURCE,
    Stack,
    alias_of,
    render,
    variants,
)

LANES = ("InteractiveQueue", "BatchQueue")
MAPPINGS = ("RunJobFunctionInteractive", "RunJobFunctionBatch")

TIMEOUTS = [
    pytest.param(values, id=values["RunJobTimeout"]) for values in variants("RunJobTimeout")
]
CONCURRENCY = [
    pytest.param(values, id=values["WorkerConcurrency"]) for values in variants("WorkerConcurrency")
]
DEFAULT_MODEL = Catalogue(
    vendors={"vendor": Vendor()},
    models={"model": Model(vendor="vendor", vendor_model="model-1", version="1")},
)
LOCAL_CATALOGUE = catalogues.parse(
    (ROOT / "local/sluiceway_local/catalogue.toml").read_text("utf-8")
)


def timeout_s(stack: Stack) -> int:
    return int(stack.properties("RunJobFunction")["Timeout"])


def feeds_of(stack: Stack) -> list[tuple[str, str, dict[str, Any]]]:
    """Each queue that feeds a function, that function, and the mapping."""
    return [
        (source, of["FunctionName"]["Ref"].removesuffix("Aliaslive"), of)
        for of in stack.of_type("AWS::Lambda::EventSourceMapping").values()
        for source, attribute in [of["EventSourceArn"]["Fn::GetAtt"]]
        if attribute == "Arn"
    ]


def lease_s(stack: Stack) -> int:
    return int(stack.properties("RunJobFunction")["Environment"]["Variables"]["LEASE_S"])


# ------------------------------------------------------------------------------------ RunJobTimeout


@pytest.mark.parametrize("parameters", TIMEOUTS)
def test_worker_runs_as_long_as_the_parameter_says(parameters: dict[str, str]) -> None:
    stack = render(**parameters)

    assert timeout_s(stack) == int(parameters["RunJobTimeout"]) <= 900


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("parameters", TIMEOUTS)
def test_visibility_is_over_six_times_the_workers_timeout(  # case P01
    parameters: dict[str, str], lane: str
) -> None:
    stack = render(**parameters)

    visibility_s = stack.properties(lane)["VisibilityTimeout"]

    assert 6 * timeout_s(stack) < visibility_s <= 12 * 3600


@pytest.mark.parametrize("parameters", TIMEOUTS)
def test_every_queue_that_feeds_a_function_hides_a_message_long_enough(  # case P01
    parameters: dict[str, str],
) -> None:
    stack = render(**parameters)

    feeds = feeds_of(stack)

    assert {queue for queue, _, _ in feeds} == {*LANES, "WebhookQueue"}
    for queue, function, _ in feeds:
        visibility_s = stack.properties(queue)["VisibilityTimeout"]
        assert 6 * int(stack.properties(function)["Timeout"]) <= visibility_s


def test_every_queue_that_feeds_a_function_reads_partial_failures() -> None:  # case P04
    read = {queue: of.get("FunctionResponseTypes") for queue, _, of in feeds_of(render())}

    assert set(read) == {*LANES, "WebhookQueue"}
    assert all(of == ["ReportBatchItemFailures"] for of in read.values())


@pytest.mark.parametrize("parameters", TIMEOUTS)
def test_lease_ends_before_the_worker(parameters: dict[str, str]) -> None:
    stack = render(**parameters)

    assert lease_s(stack) < timeout_s(stack)


@pytest.mark.parametrize(
    "catalogue",
    [
        pytest.param(DEFAULT_MODEL, id="defaults"),
        pytest.param(LOCAL_CATALOGUE, id="local catalogue"),
    ],
)
@pytest.mark.parametrize("parameters", TIMEOUTS)
def test_hold_call_and_finish_fit_in_the_lease(
    parameters: dict[str, str], catalogue: Catalogue
) -> None:
    stack = render(**parameters)

    faults = catalogues.check_times(catalogue, lease_s=lease_s(stack))

    assert faults == ()


@pytest.mark.parametrize("parameters", TIMEOUTS)
def test_lease_after_the_longest_hold_is_a_whole_one(parameters: dict[str, str]) -> None:
    stack = render(**parameters)

    assert catalogues.Service().hold_max_s + lease_s(stack) <= timeout_s(stack)


def test_longer_worker_has_a_longer_lease_and_visibility() -> None:  # case P01
    stacks = [render(**values) for values in variants("RunJobTimeout")]

    timings = [
        (timeout_s(s), lease_s(s), s.properties("BatchQueue")["VisibilityTimeout"]) for s in stacks
    ]

    assert all(
        a < b for before, after in pairwise(timings) for a, b in zip(before, after, strict=True)
    )


@pytest.mark.parametrize(
    ("parameter", "mapping"),
    [("RunJobTimeout", "RunJobTimings"), ("WorkerConcurrency", "Concurrency")],
)
def test_every_allowed_value_has_its_row_of_numbers(parameter: str, mapping: str) -> None:
    allowed = set(PARAMETERS[parameter]["AllowedValues"])

    assert set(SOURCE["Mappings"][mapping]) == allowed


# -------------------------------------------------------------------------------- WorkerConcurrency


@pytest.mark.parametrize("parameters", CONCURRENCY)
def test_lanes_together_never_exceed_what_is_reserved(parameters: dict[str, str]) -> None:
    # Else SQS throttles, and throttled messages reach the dead-letter queue without having run.
    stack = render(**parameters)

    function = stack.properties("RunJobFunction")
    lanes = [stack.properties(m)["ScalingConfig"]["MaximumConcurrency"] for m in MAPPINGS]

    assert sum(lanes) <= function.get("ReservedConcurrentExecutions", sum(lanes))
    assert all(2 <= lane <= 1000 for lane in lanes)


@pytest.mark.parametrize("parameters", CONCURRENCY)
def test_reserved_concurrency_is_what_the_parameter_says(  # case P02
    parameters: dict[str, str],
) -> None:
    function = render(**parameters).properties("RunJobFunction")

    reserved = function.get("ReservedConcurrentExecutions")

    if parameters["WorkerConcurrency"] == "off":
        assert reserved is None
    else:
        assert reserved == int(parameters["WorkerConcurrency"]) >= 5


def test_concurrency_off_still_caps_the_lanes() -> None:  # case P02
    off, ten = render(WorkerConcurrency="off"), render(WorkerConcurrency="10")

    caps = [
        [stack.properties(m)["ScalingConfig"]["MaximumConcurrency"] for m in MAPPINGS]
        for stack in (off, ten)
    ]

    assert caps[0] == caps[1]


@pytest.mark.parametrize("parameters", CONCURRENCY)
def test_sweeper_knows_how_many_workers_the_lanes_have(parameters: dict[str, str]) -> None:
    stack = render(**parameters)

    known = stack.properties("SweepJobsFunction")["Environment"]["Variables"]

    assert [known["INTERACTIVE_WORKERS"], known["BATCH_WORKERS"]] == [
        str(stack.properties(m)["ScalingConfig"]["MaximumConcurrency"]) for m in MAPPINGS
    ]


def test_only_the_worker_reserves_concurrency() -> None:
    functions = render().of_type("AWS::Lambda::Function")

    reserving = {name for name, of in functions.items() if "ReservedConcurrentExecutions" in of}

    assert reserving == {"RunJobFunction"}


# ------------------------------------------------------------------------------------ queues


@pytest.mark.parametrize("lane", LANES)
def test_lane_moves_a_message_after_the_receives_that_the_worker_counts_on(  # case D09
    lane: str,
) -> None:
    redrive = render().properties(lane)["RedrivePolicy"]

    assert redrive["maxReceiveCount"] == MAX_RECEIVES >= 5
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]}


def test_every_other_queue_takes_what_somebody_gave_up_on() -> None:
    queues = render().of_type("AWS::SQS::Queue")

    targets = {
        of["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
        for of in queues.values()
        if "RedrivePolicy" in of
    } | {
        of["DestinationConfig"]["OnFailure"]["Destination"]["Fn::GetAtt"][0]
        for kind in ("EventSourceMapping", "EventInvokeConfig")
        for of in render().of_type(f"AWS::Lambda::{kind}").values()
        if "DestinationConfig" in of
    }

    assert {name for name, of in queues.items() if "RedrivePolicy" not in of} == targets


@pytest.mark.parametrize("lane", LANES)
def test_dead_letters_outlive_their_lane(lane: str) -> None:  # case D02
    # The time in the dead-letter queue counts from the first enqueueing.
    stack = render()

    kept_s = stack.properties("DeadLetterQueue")["MessageRetentionPeriod"]

    assert kept_s == 14 * 24 * 3600 > stack.properties(lane)["MessageRetentionPeriod"]


def test_only_the_function_that_a_rule_invokes_has_a_failure_queue_of_its_own() -> None:  # case D09
    # For a function that a queue feeds, only the queue's redrive policy counts.
    stack = render()

    functions = stack.of_type("AWS::Lambda::Function")

    assert not any("DeadLetterConfig" in of for of in functions.values())
    assert {
        of["FunctionName"]["Ref"] for of in stack.of_type("AWS::Lambda::EventInvokeConfig").values()
    } == {"InvalidateCacheFunction"}


@pytest.mark.parametrize(
    "queue", [pytest.param(name, id=name) for name in render().of_type("AWS::SQS::Queue")]
)
def test_queue_is_encrypted(queue: str) -> None:
    assert render().properties(queue)["SqsManagedSseEnabled"] is True


def test_each_lane_feeds_the_worker_once() -> None:
    mappings = render().of_type("AWS::Lambda::EventSourceMapping")

    fed = sorted(
        of["EventSourceArn"]["Fn::GetAtt"][0]
        for of in mappings.values()
        if of["FunctionName"] == alias_of("RunJobFunction")
    )

    assert fed == ["BatchQueue", "InteractiveQueue"]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_lane_gives_one_message_at_a_time_and_reads_partial_failures(  # case P04
    mapping: str,
) -> None:
    of = render().properties(mapping)

    assert of["BatchSize"] == 1
    assert of["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert of.get("Enabled", True) is True


def test_a_send_ends_within_its_limit() -> None:
    config: Any = bootstrap.SEND_CONFIG

    tries = config.retries["total_max_attempts"]

    assert tries == 1
    assert (config.connect_timeout + config.read_timeout) * tries < SEND_LIMIT_S


# ------------------------------------------------------------------------------------ API


def test_api_answers_before_the_gateway_gives_up() -> None:
    stack = render()

    waits_s = 29

    assert stack.properties("ApiFunction")["Timeout"] <= waits_s
    assert stack.properties("AuthorizeFunction")["Timeout"] < waits_s


def test_held_call_is_answered_before_the_gateway_gives_up() -> None:
    timeout_s = render().properties("ApiFunction")["Timeout"]

    assert timeout_s > HOLD_S + HOLD_ENDS_BEFORE_S


# ------------------------------------------------------------------------------------ pauses


def test_deploy_ends_no_pause_of_a_lane() -> None:
    # A pause disables the mapping by Lambda's API: what the template doesn't set stays as it is.
    mappings = render().of_type("AWS::Lambda::EventSourceMapping")

    of_lanes = {
        name: of
        for name, of in mappings.items()
        if of["EventSourceArn"]["Fn::GetAtt"][0] in LANES
        and of["FunctionName"] == alias_of("RunJobFunction")
    }

    assert len(of_lanes) == len(LANES)
    assert [name for name, of in of_lanes.items() if "Enabled" in of] == []

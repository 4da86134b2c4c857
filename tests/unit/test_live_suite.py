"""The parts of the live tests that need no account: the switch, and the reading of answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sluiceway.domain import catalogue as catalogues
from sluiceway_cli import costs
from sluiceway_local import processes

from tests.live import reading, stage, switch, teardown, vendor

ROOT = Path(__file__).parents[2]
STACK = "sluiceway-live-0123abcd"
CALLER = {"Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/tester"}
KEY = "vendor-key"
API_TRACE, WORKER_TRACE = (f"1-6566{number:04x}-{'0' * 24}" for number in (1, 2))


# ------------------------------------------------------------------------------------ the switch


def test_account_that_is_not_named_is_told_and_refused() -> None:
    refusal = switch.refusal(None, CALLER["Account"])

    assert refusal is not None
    assert f"SLUICEWAY_LIVE_ACCOUNT={CALLER['Account']}" in refusal


@pytest.mark.parametrize(
    ("wanted", "refused"), [("444455556666", True), (CALLER["Account"], False), ("", True)]
)
def test_run_starts_in_the_account_that_is_named_alone(wanted: str, *, refused: bool) -> None:
    assert (switch.refusal(wanted, CALLER["Account"]) is not None) is refused


def test_run_on_endpoints_of_aws_is_one_on_aws() -> None:
    urls = {
        "s3": "https://s3.eu-central-1.amazonaws.com",
        "sts": "https://sts.cn-north-1.amazonaws.com.cn",
        "sqs": "https://vpce-1.sqs.eu-central-1.vpce.amazonaws.com",
        "lambda": "https://lambda.eu-central-1.api.aws",
    }

    assert switch.elsewhere(urls) is None


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:4566", "https://amazonaws.com.example", "https://notamazonaws.com"]
)
def test_endpoint_of_an_emulator_is_told_and_refused(url: str) -> None:
    refusal = switch.elsewhere({"s3": "https://s3.eu-central-1.amazonaws.com", "sqs": url})

    assert refusal is not None
    assert url in refusal


def test_announcement_names_account_region_cost_and_the_way_back() -> None:
    told = switch.announcement(STACK, CALLER, "eu-central-1")

    for part in (*CALLER.values(), "eu-central-1", STACK, "USD", "tests.live.teardown"):
        assert part in told


def test_run_costs_less_than_half_a_dollar() -> None:
    assert 0 < sum(switch.cost().values()) < 0.5


def test_longer_run_costs_what_the_stack_costs_more() -> None:
    more = sum(switch.cost(80).values()) - sum(switch.cost(20).values())

    assert more >= costs.idle_cost().usd / costs.MONTH_H


@pytest.mark.parametrize(("unreserved", "parameter"), [(10, "off"), (109, "off"), (110, "10")])
def test_small_account_gets_no_reserved_workers(unreserved: int, parameter: str) -> None:
    assert switch.workers(unreserved) == parameter


@pytest.mark.parametrize("name", ["sluiceway", "sluiceway-live-", "sluiceway-live-0123abcd-more"])
def test_teardown_refuses_what_is_no_stack_of_the_live_tests(name: str) -> None:
    with pytest.raises(ValueError, match="no stack of the live tests"):
        teardown.Teardown(name)


@pytest.mark.parametrize("argument", ["", "sluiceway", "sluiceway-live-0123ABCD"])
def test_teardown_by_hand_tells_what_it_takes(argument: str) -> None:
    done = run("tests.live.teardown", argument)

    assert done.returncode == 1
    assert "usage: python -m tests.live.teardown sluiceway-live-" in done.stderr


def test_new_stack_is_one_that_the_teardown_takes() -> None:
    assert teardown.STACK_PATTERN.fullmatch(stage.new_name())


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=processes.clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def pytest_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("pytest", "-q", "-p", "no:cacheprovider", *arguments)


def test_live_tests_skip_unless_they_are_asked_for() -> None:
    done = pytest_run("tests/live")

    assert done.returncode == 0, done.stdout
    assert "passed" not in done.stdout
    assert switch.SKIPPED in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("tests/unit/test_ids.py", "--live"),
        ("tests/live", "--live", "--live-endpoint", "http://127.0.0.1:1"),
    ],
)
def test_others_are_refused_where_live_tests_run(options: tuple[str, ...]) -> None:
    done = pytest_run(*options)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout


# ------------------------------------------------------------------------------------ the outside


def test_vendor_fits_into_a_template() -> None:
    (code,) = json.loads(stage.outside_template())["Resources"]["VendorFunction"]["Properties"][
        "Code"
    ].values()

    assert len(code) <= 4096
    compile(code, "index.py", "exec")


def test_catalogue_of_the_live_stack_is_right() -> None:
    text = stage.CATALOGUE.format(url="https://vendor.example", stack=STACK)

    catalogue = catalogues.parse(text)

    assert catalogues.check_times(catalogue, lease_s=100.0) == ()
    assert catalogue.vendors["live"].api_key_secret.startswith(catalogues.VENDOR_SECRETS)


def asked(sim: dict[str, Any] | None = None, *, key: str = KEY) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": "prompt"}],
        "sim": {"delay_s": 0} | (sim or {}),
    }
    return {
        "rawPath": "/v1/chat/completions",
        "headers": {"authorization": f"Bearer {key}", "idempotency-key": "job_1"},
        "body": json.dumps(body),
    }


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_KEY", KEY)


@pytest.mark.usefixtures("key")
def test_vendor_answers_whoever_has_its_key() -> None:
    answer, refusal = vendor.handler(asked(), None), vendor.handler(asked(key="another"), None)

    text = json.loads(answer["body"])["choices"][0]["message"]["content"]
    assert (answer["statusCode"], refusal["statusCode"]) == (200, 401)
    assert text == f"Answer {vendor.digest('prompt')}"


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(("until_s", "status"), [(0, 200), (4_000_000_000, 503)])
def test_vendor_fails_until_it_was_told_to_recover(until_s: int, status: int) -> None:
    answer = vendor.handler(asked({"status": 503, "until_epoch_s": until_s}), None)

    assert answer["statusCode"] == status


@pytest.mark.usefixtures("key")
def test_vendor_logs_calls_and_webhooks_without_what_they_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hook = {"rawPath": vendor.hook_path(KEY), "headers": {"webhook-id": "msg_1"}, "body": "{}"}

    vendor.handler(asked(), None)
    vendor.handler(hook, None)

    printed = capsys.readouterr().out.splitlines()
    call, told = reading.vendor_lines(["START RequestId: 1", *printed])
    assert (call["key"], call["status"]) == ("job_1", 200)
    assert told == {"hook": "msg_1", "signed": False}
    assert "prompt" not in "".join(printed)


# ------------------------------------------------------------------------------------ reading


def test_most_at_once_counts_what_overlaps() -> None:
    calls = [
        {"arrived_ms": arrived, "left_ms": left}
        for arrived, left in ((0, 10), (5, 20), (10, 15), (19, 30), (40, 50))
    ]

    assert reading.most_at_once(calls) == 2
    assert reading.most_at_once([]) == 0


@pytest.mark.parametrize(("percent", "value"), [(50, 2), (51, 3), (100, 4), (1, 1)])
def test_percentile_is_of_the_nearest_rank(percent: float, value: float) -> None:
    assert reading.percentile([4, 1, 3, 2], percent) == value


def test_fairness_tells_how_long_each_group_waited() -> None:
    told = reading.fairness({"noisy": [1000, 40_000, 80_000], "quiet": [500]})

    assert told["noisy"] == {"messages": 3, "median_s": 40.0, "most_s": 80.0}
    assert told["quiet"] == {"messages": 1, "median_s": 0.5, "most_s": 0.5}


def test_move_tells_which_facts_it_kept() -> None:
    message = {
        "MessageId": "one",
        "Attributes": {
            "SentTimestamp": "1000",
            "ApproximateFirstReceiveTimestamp": "2000",
            "ApproximateReceiveCount": "2",
        },
    }
    before = reading.facts_of(message)
    after = reading.facts_of(message | {"MessageId": "two"})

    kept = reading.moved(before, after)

    assert kept.pop("keeps_message_id") is False
    assert all(kept.values())


@pytest.mark.parametrize(
    ("line", "denied"),
    [
        ('{"error_class": "AccessDeniedException"}', True),
        ("User: x is not authorized to perform: sqs:SendMessage", True),
        ('{"message": "job_completed"}', False),
    ],
)
def test_denials_are_found_in_logs(line: str, *, denied: bool) -> None:
    assert bool(reading.denials([line])) is denied


def test_values_of_metrics_are_joined_over_pages() -> None:
    told = reading.values(
        [{"Id": "a", "Values": [1.0]}, {"Id": "b", "Values": []}, {"Id": "a", "Values": [2.0]}]
    )

    assert told == {"a": [1.0, 2.0], "b": []}


def test_traces_tell_origins_annotations_and_links() -> None:
    documents = {
        API_TRACE: [
            {"id": "1", "name": "api/v1", "origin": "AWS::ApiGateway::Stage"},
            {"id": "2", "name": "api", "subsegments": [{"annotations": {"job_id": "job_1"}}]},
        ],
        WORKER_TRACE: [
            {"id": "3", "name": "run", "origin": "AWS::Lambda", "links": [{"trace_id": API_TRACE}]}
        ],
    }
    answer = [
        {"Id": trace, "Segments": [{"Id": one["id"], "Document": json.dumps(one)} for one in found]}
        for trace, found in documents.items()
    ]

    found = reading.segments(answer)

    assert found == documents
    assert reading.origins(found[API_TRACE]) == {"AWS::ApiGateway::Stage": 1}
    assert reading.annotated(found[API_TRACE], "job_id") == {"job_1"}
    assert reading.links(found[WORKER_TRACE]) == {API_TRACE}


@pytest.mark.parametrize(
    ("header", "root"),
    [(f"Root={API_TRACE};Parent=1;Sampled=1", API_TRACE), (None, None), ("Sampled=1", None)],
)
def test_root_of_a_trace_header(header: str | None, root: str | None) -> None:
    assert reading.root_of(header) == root


@pytest.mark.parametrize(
    ("arn", "physical_id", "same"),
    [
        ("arn:aws:sqs:eu-west-1:1:q", "https://sqs.eu-west-1.amazonaws.com/1/q", True),
        ("arn:aws:logs:eu-west-1:1:log-group:g:*", "g", True),
        ("arn:aws:lambda:eu-west-1:1:function:f:3", "f", True),
        ("arn:aws:sns:eu-west-1:1:topic", "arn:aws:sns:eu-west-1:1:topic", True),
        ("arn:aws:appconfig:eu-west-1:1:application/a1/environment/e2", "a1|e2", True),
        ("arn:aws:sqs:eu-west-1:1:other-q", "q", False),
    ],
)
def test_arn_is_known_by_its_physical_id(arn: str, physical_id: str, *, same: bool) -> None:
    assert teardown.names(arn, physical_id) is same

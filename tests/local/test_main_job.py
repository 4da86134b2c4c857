"""The main job over HTTP, on the real template: MiniStack, real processes, a real vendor."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sluiceway_client import Client, JobFailedError, NotFoundError
from sluiceway_local import deploy, emulator, stack, state
from sluiceway_local.processes import wait_for
from sluiceway_local.state import LocalStack

from tests.local.plant import Plant

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0
PYTHONPATH = os.pathsep.join(str(ROOT / part) for part in ("layers/core", "cli", "local"))
SECRET_PROMPT = "a-prompt-that-no-log-may-hold"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack") / ".sluiceway"


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[LocalStack]:
    try:
        yield stack.up(deploy.Source(ROOT), port=emulator.free_port(), folder=folder)
    finally:
        stack.down(folder)


@pytest.fixture
def acme(local: LocalStack) -> Iterator[httpx.Client]:
    with client(local, local.partners["acme"]) as made:
        yield made


@pytest.fixture
def globex(local: LocalStack) -> Iterator[httpx.Client]:
    with client(local, local.partners["globex"]) as made:
        yield made


def client(local: LocalStack, key: str) -> httpx.Client:
    return httpx.Client(
        base_url=local.api_url, headers={"authorization": f"Bearer {key}"}, timeout=DEADLINE_S
    )


def ended(api: httpx.Client, job_id: str, statuses: tuple[str, ...] = ("completed",)) -> Any:
    job: Any = None

    def look() -> bool:
        nonlocal job
        job = api.get(f"/jobs/{job_id}").json()
        return job["status"] in statuses

    assert wait_for(look, timeout_s=DEADLINE_S, pause_s=0.1), job
    return job


def vendor_calls(local: LocalStack, prompt: str) -> int:
    counted = httpx.get(local.vendor_url.removesuffix("/v1") + "/_control/calls").json()
    seen: int = counted["by_prompt"].get(prompt, {"calls": 0})["calls"]
    return seen


def rows(local: LocalStack) -> dict[str, int]:
    dynamodb = emulator.client("dynamodb", local.endpoint_url)
    return {
        name: dynamodb.scan(TableName=local.outputs[name], Select="COUNT")["Count"]
        for name in ("JobsTableName", "CoordinationTableName", "CacheTableName")
    }


def test_job_runs_once_and_is_then_answered_from_the_cache(
    local: LocalStack, acme: httpx.Client
) -> None:
    body = {"model": "demo-chat", "input": "Main job", "metadata": {"a": "b"}}

    accepted = acme.post("/jobs", json=body)
    job = ended(acme, accepted.json()["id"])
    hit = acme.post("/jobs", json=body)
    again = acme.get(f"/jobs/{hit.json()['id']}")

    assert accepted.status_code == 202
    assert accepted.headers["location"].endswith(f"/v1/jobs/{accepted.json()['id']}")
    assert accepted.headers["retry-after"] == "1"
    assert accepted.headers["cache-status"] == "sluiceway; fwd=miss"
    assert job["result"]["text"].startswith("You said: Main job")
    assert job["metadata"] == {"a": "b"}
    assert job["usage"]["cost"] > 0
    assert hit.status_code == 200
    assert hit.headers["cache-status"].startswith("sluiceway; hit; ttl=")
    assert hit.json()["result"]["text"] == job["result"]["text"]
    assert hit.json()["usage"]["cost"] == 0
    assert hit.json()["usage"]["saved"] == job["usage"]["cost"]
    assert again.json()["result"] == hit.json()["result"]
    assert vendor_calls(local, "Main job") == 1


def test_anthropic_vendor_runs_the_same_job(acme: httpx.Client) -> None:
    body = {
        "model": "demo-claude",
        "input": {"messages": [{"role": "user", "content": "By the other wire"}]},
    }

    job = ended(acme, acme.post("/jobs", json=body).json()["id"])

    assert job["result"]["text"].startswith("You said: By the other wire")


@pytest.mark.proves(2)
def test_fifty_equal_requests_at_once_are_one_job_and_one_call(
    local: LocalStack, folder: Path, acme: httpx.Client
) -> None:
    body = {"model": "demo-chat", "input": "Fifty at once"}

    # The lane stands still: on a slow machine a request may begin before the job's end and come
    # to its claim after it.
    with Plant(local, folder).lane_stopped("Interactive"), ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: acme.post("/jobs", json=body), range(50)))
    ids = {answer.json()["id"] for answer in answers if answer.status_code == 202}
    job_id = next(iter(ids))
    job = ended(acme, job_id)

    assert {answer.status_code for answer in answers} <= {200, 202}
    assert ids == {job_id}
    assert job["attempts"] == 1
    assert vendor_calls(local, "Fifty at once") == 1


def test_ten_different_requests_at_once_are_ten_jobs(local: LocalStack, acme: httpx.Client) -> None:
    prompts = [f"Different {number}" for number in range(10)]

    with ThreadPoolExecutor(10) as pool:
        answers = list(
            pool.map(
                lambda prompt: acme.post("/jobs", json={"model": "demo-chat", "input": prompt}),
                prompts,
            )
        )
    jobs = [ended(acme, answer.json()["id"]) for answer in answers]

    assert len({job["id"] for job in jobs}) == 10
    assert [vendor_calls(local, prompt) for prompt in prompts] == [1] * 10


SLOW = {"sim": {"delay_s": 3}}


@pytest.mark.parametrize(
    "other",
    [
        (
            b'{"options":{"top_p":0.5,"sim":{"delay_s":3},"temperature":1},'
            b'"input":"Line\\nend","model":"demo-chat"}'
        ),
        (
            b'{\n  "model": "demo-chat",\n  "input": "Line\\r\\nend",\n  "options": '
            b'{"temperature": 1.0, "top_p": 5e-1, "sim": {"delay_s": 3.0}}\n}'
        ),
        (
            b'{"model":"demo-chat","input":"Line\\rend","metadata":{"x":"y"},"deadline_s":600,'
            b'"options":{"temperature":1e0,"top_p":0.50,"sim":{"delay_s":3}}}'
        ),
    ],
    ids=["reordered", "pretty-printed", "other-line-ends"],
)
def test_same_work_in_another_spelling_is_the_same_job(acme: httpx.Client, other: bytes) -> None:
    options = {"temperature": 1, "top_p": 0.5, **SLOW}
    first = acme.post(
        "/jobs", json={"model": "demo-chat", "input": "Line\nend", "options": options}
    )

    second = acme.post("/jobs", content=other, headers={"content-type": "application/json"})

    assert second.json()["id"] == first.json()["id"] or second.status_code == 200
    assert second.json()["deduplicated"] or second.json()["cache"]["status"] == "hit"


def test_any_change_of_the_work_is_another_job(acme: httpx.Client) -> None:
    base = {"model": "demo-chat", "input": "Base", "options": {"temperature": 1}}
    changes: list[dict[str, Any]] = [
        {},
        {"model": "demo-heavy"},
        {"input": "base"},
        {"options": {"temperature": 2}},
        {"locale": "de-DE"},
        {"safety_profile": "strict"},
    ]

    ids = {acme.post("/jobs", json={**base, **change}).json()["id"] for change in changes}

    assert len(ids) == len(changes)


@pytest.mark.proves(10)
def test_another_partners_job_is_the_same_as_an_unknown_one(
    acme: httpx.Client, globex: httpx.Client
) -> None:
    job_id = acme.post("/jobs", json={"model": "demo-chat", "input": "Mine"}).json()["id"]

    others = globex.get(f"/jobs/{job_id}")
    unknown = globex.get("/jobs/job_01M8MG8BZK0FN56HXMX48ZSJAN")

    for answer in (others, unknown):
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
    assert {**others.json(), "request_id": ""} == {**unknown.json(), "request_id": ""}


@pytest.mark.proves(10)
def test_tenants_share_no_cache_entry(acme: httpx.Client, globex: httpx.Client) -> None:
    body = {"model": "demo-chat", "input": "Whose is it?"}
    ended(acme, acme.post("/jobs", json=body).json()["id"])

    answer = globex.post("/jobs", json=body)

    assert answer.status_code == 202
    assert answer.json()["deduplicated"] is False


@pytest.mark.parametrize("authorization", [None, "", "Bearer swk_unknown", "Basic swk_unknown"])
def test_request_without_a_good_key_is_unauthenticated(
    local: LocalStack, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}

    answer = httpx.post(f"{local.api_url}/jobs", json={}, headers=headers, timeout=DEADLINE_S)

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthenticated"


def test_revoked_key_is_unauthenticated(local: LocalStack, cli: Callable[..., Any]) -> None:
    made = json.loads(cli("keys", "create", "initech", "--json"))
    cli("keys", "revoke", made["key_id"])

    with client(local, made["key"]) as api:
        answer = api.get("/jobs/job_01M8MG8BZK0FN56HXMX48ZSJAN")

    assert answer.status_code == 401


def test_health_needs_no_key(local: LocalStack) -> None:
    assert httpx.get(f"{local.api_url}/health").json() == {"status": "ok"}
    head = httpx.head(f"{local.api_url}/health")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health", "GET, HEAD"),
        ("/jobs", "GET, HEAD, POST"),
        ("/jobs/x", "GET, HEAD"),
        ("/nope", None),
    ],
)
@pytest.mark.parametrize("method", ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_gateway_lets_every_method_through_to_its_refusal(
    acme: httpx.Client, path: str, allowed: str | None, method: str
) -> None:
    answer = acme.request(method, path)

    if method in (allowed or "").split(", "):
        assert answer.status_code in {200, 404}
        return
    assert answer.status_code == (405 if allowed else 404)
    assert answer.headers.get("allow") == allowed
    assert answer.headers["content-type"] == "application/problem+json"
    if method == "HEAD":
        assert answer.content == b""
    else:
        assert answer.json()["code"] == ("method_not_allowed" if allowed else "route_not_found")


def test_method_that_the_gateway_does_not_have_is_its_own_to_refuse(acme: httpx.Client) -> None:
    answer = acme.request("TRACE", "/jobs")

    assert (answer.status_code, answer.json()["code"]) == (404, "route_not_found")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"\xff\xfe", 400, "invalid_request"),
        (b'{"model":"demo-chat","input":"x","model":"demo-heavy"}', 400, "invalid_request"),
        (b'{"model":"demo-chat","input":"x","options":{"t":NaN}}', 400, "invalid_request"),
        (b'{"model":"demo-chat","input":"x","options":{"t":1e999}}', 400, "invalid_request"),
        (b"[" * 40 + b"]" * 40, 400, "invalid_request"),
        (b"[]", 422, "validation_failed"),
        (b'{"model":"demo-chat","input":"bad \\ud83d end"}', 422, "validation_failed"),
        (b'{"model":"demo-chat","input":"x","tenant_id":"globex"}', 422, "validation_failed"),
        (b'{"model":"demo-chat","input":"x","stream":true}', 422, "validation_failed"),
        (b'{"model":"nope","input":"x"}', 404, "model_not_found"),
        (b'{"model":"demo-chat","input":"' + b"x" * 1024 * 1024 + b'"}', 413, "payload_too_large"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_body_gets_its_code_and_writes_nothing(
    local: LocalStack, acme: httpx.Client, body: bytes, status: int, code: str
) -> None:
    before = rows(local)["JobsTableName"]

    answer = acme.post("/jobs", content=body, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert rows(local)["JobsTableName"] == before


def test_binary_body_is_decoded_before_it_is_read(acme: httpx.Client) -> None:
    body = b'{"model":"demo-chat","input":"Binary"}'

    plain = acme.post("/jobs", content=body, headers={"content-type": "application/json"})
    binary = acme.post("/jobs", content=body, headers={"content-type": "application/octet-stream"})

    assert binary.status_code in {200, 202}, base64.b64encode(binary.content)
    assert binary.json()["id"] == plain.json()["id"] or binary.status_code == 200


def test_unusual_characters_reach_the_vendor_unchanged(
    local: LocalStack, acme: httpx.Client
) -> None:
    prompt = 'a\r\nb <&> "q" \u0000 \u0007 \ufffe 😀 Ѱ 𠀀 Cafe\u0301'

    ended(acme, acme.post("/jobs", json={"model": "demo-chat", "input": prompt}).json()["id"])

    assert vendor_calls(local, prompt) == 1


def test_big_input_and_big_result_come_through(acme: httpx.Client) -> None:
    noise = base64.b64encode(bytes(range(256)) * 2000).decode()
    body = {
        "model": "demo-chat",
        "input": noise,
        "options": {"sim": {"size_bytes": 500_000}},
    }

    job = ended(acme, acme.post("/jobs", json=body).json()["id"])

    assert len(job["result"]["text"].encode()) >= 500_000


def test_result_that_lambda_cannot_return_has_an_address(acme: httpx.Client) -> None:
    body = {
        "model": "demo-chat",
        "input": "Huge",
        "options": {"sim": {"size_bytes": 6_000_000}},
    }

    job = ended(acme, acme.post("/jobs", json=body).json()["id"])
    document = httpx.get(job["result_url"], timeout=DEADLINE_S).json()

    assert "result" not in job
    assert len(document["text"]) >= 6_000_000


def test_python_client_runs_jobs_small_and_huge(local: LocalStack) -> None:
    with Client(local.api_url, local.partners["acme"]) as partner:
        small = partner.run(model="demo-chat", input="By the client", timeout_s=DEADLINE_S)
        huge = partner.run(
            model="demo-chat",
            input="Huge, by the client",
            options={"sim": {"size_bytes": 6_000_000}},
            timeout_s=DEADLINE_S,
        )

        assert partner.get(small).text == small.text
        assert huge.result_url is not None
        assert len(huge.text) >= 6_000_000
        assert huge.id in {job.id for job in partner.jobs(model="demo-chat", limit=1)}


def test_python_client_raises_what_went_wrong(local: LocalStack) -> None:
    with Client(local.api_url, local.partners["acme"]) as partner:
        with pytest.raises(JobFailedError) as failed:
            partner.run(
                model="demo-chat",
                input="Refused, by the client",
                options={"sim": {"status": 400}},
                timeout_s=DEADLINE_S,
            )
        with pytest.raises(NotFoundError):
            partner.get("job_unknown")

    assert failed.value.code == "vendor_rejected"


def test_vendor_errors_are_retried_until_it_works(local: LocalStack, acme: httpx.Client) -> None:
    body = {
        "model": "demo-chat",
        "input": "Thrice",
        "options": {"sim": {"status": 500, "times": 2}},
    }

    job = ended(acme, acme.post("/jobs", json=body).json()["id"])

    assert job["attempts"] == 3
    assert vendor_calls(local, "Thrice") == 3


@pytest.mark.proves(13)
def test_refused_job_reaches_the_dead_letter_queue_with_its_reason(
    local: LocalStack, acme: httpx.Client
) -> None:
    sqs = emulator.client("sqs", local.endpoint_url)
    body = {"model": "demo-chat", "input": "Refused", "options": {"sim": {"status": 400}}}

    job_id = acme.post("/jobs", json=body).json()["id"]
    job = ended(acme, job_id, ("dead_lettered",))
    messages: list[Any] = []

    def look() -> bool:
        answer = sqs.receive_message(
            QueueUrl=local.outputs["DeadLetterQueueUrl"],
            VisibilityTimeout=1,
            AttributeNames=["DeadLetterQueueSourceArn"],
        )
        found = answer.get("Messages", [])
        messages.extend(one for one in found if json.loads(one["Body"])["job_id"] == job_id)
        return bool(messages)

    assert job["error"]["code"] == "vendor_rejected"
    assert wait_for(look, timeout_s=DEADLINE_S)
    lane = sqs.get_queue_attributes(
        QueueUrl=local.outputs["InteractiveQueueUrl"], AttributeNames=["QueueArn"]
    )
    moved_from = messages[0]["Attributes"]["DeadLetterQueueSourceArn"]
    assert moved_from == lane["Attributes"]["QueueArn"]


def test_correlation_id_is_in_both_functions_logs_and_no_prompt_or_key_is(
    local: LocalStack, acme: httpx.Client
) -> None:
    answer = acme.post(
        "/jobs",
        json={"model": "demo-chat", "input": SECRET_PROMPT},
        headers={"x-correlation-id": "corr-4711"},
    )
    ended(acme, answer.json()["id"])

    text = ""

    def both_told() -> bool:
        nonlocal text
        text = all_logs(local)
        about = [json.loads(line) for line in text.splitlines() if "corr-4711" in line]
        return {line["message"] for line in about} >= {"job_submitted", "job_completed"}

    assert answer.headers["x-correlation-id"] == "corr-4711"
    assert wait_for(both_told, timeout_s=DEADLINE_S, pause_s=1.0)
    assert SECRET_PROMPT not in text
    assert not any(key in text for key in local.partners.values())
    assert stack.FAKE_VENDOR_KEY not in text


def all_logs(local: LocalStack) -> str:
    logs = emulator.client("logs", local.endpoint_url)
    pages = logs.get_paginator("filter_log_events")
    return "\n".join(
        event["message"]
        for group in logs.describe_log_groups()["logGroups"]
        for page in pages.paginate(logGroupName=group["logGroupName"])
        for event in page["events"]
    )


def test_up_again_redeploys_and_keeps_the_data(
    local: LocalStack, acme: httpx.Client, folder: Path
) -> None:
    job_id = acme.post("/jobs", json={"model": "demo-chat", "input": "Kept"}).json()["id"]
    ended(acme, job_id)

    again = stack.up(deploy.Source(ROOT), folder=folder)

    with client(again, again.partners["acme"]) as api:
        assert api.get(f"/jobs/{job_id}").json()["status"] == "completed"
    assert again.pid == local.pid


def test_local_json_says_where_everything_is(local: LocalStack, folder: Path) -> None:
    written = json.loads((folder / "local.json").read_text())

    assert set(written) == {
        "api_url",
        "endpoint_url",
        "region",
        "stack",
        "partners",
        "outputs",
        "vendor_url",
        "pid",
    }
    assert set(written["partners"]) == {"acme", "globex"}
    assert written["endpoint_url"] == local.endpoint_url


@pytest.mark.proves(12)
def test_lanes_caps_add_up_to_the_reserved_concurrency_of_the_workers(local: LocalStack) -> None:
    functions = emulator.client("lambda", local.endpoint_url)
    name = local.outputs["RunJobFunctionName"]

    reserved = functions.get_function_concurrency(FunctionName=name)
    mappings = functions.list_event_source_mappings(FunctionName=f"{name}:live")

    caps = [one["ScalingConfig"]["MaximumConcurrency"] for one in mappings["EventSourceMappings"]]
    assert sorted(caps) == [5, 15]
    assert reserved["ReservedConcurrentExecutions"] == sum(caps)


def test_down_stops_what_was_started_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / ".sluiceway"
    stack.up(deploy.Source(ROOT), port=emulator.free_port(), folder=folder)
    running = state.read_running(folder)

    stopped = stack.down(folder)
    began = time.monotonic()

    assert stopped == ["emulator", "simulator"]
    assert not any(process.alive() for process in running.processes.values())
    assert not (folder / "local.json").exists()
    assert time.monotonic() - began < DEADLINE_S
    assert stack.down(folder) == []


# ------------------------------------------------------------------------------------ CLI


@pytest.fixture(scope="module")
def cli(local: LocalStack, folder: Path) -> Callable[..., str]:
    """Runs `sluiceway` in the stack's folder; gives what it printed."""
    assert local.partners

    def run(*arguments: str, code: int = 0, text: str | None = None) -> str:
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "sluiceway_cli", *arguments],
            cwd=folder.parent,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


def test_cli_submits_waits_and_prints_the_result(cli: Callable[..., str]) -> None:
    printed = cli("submit", "demo-chat", "From the command line", "--tenant", "acme", "--wait")

    assert "status   completed" in printed
    assert "You said: From the command line" in printed


def test_cli_prints_json_and_nothing_else(cli: Callable[..., str]) -> None:
    job = json.loads(cli("submit", "demo-chat", "--tenant", "acme", "--json", text="From a pipe"))
    done = json.loads(cli("wait", job["id"], "--tenant", "acme", "--json"))

    assert done["status"] == "completed"
    assert done["result"]["text"].startswith("You said: From a pipe")


def test_cli_shows_an_operator_the_row_without_the_prompt(cli: Callable[..., str]) -> None:
    job = json.loads(
        cli("submit", "demo-chat", "Unseen prompt", "--tenant", "acme", "--wait", "--json")
    )

    shown = json.loads(cli("jobs", "show", job["id"], "--tenant", "acme", "--json"))

    assert shown["status"] == "completed"
    assert shown["attempts"] == 1
    assert "Unseen prompt" not in json.dumps(shown)


def test_cli_ends_with_2_for_a_failed_job(cli: Callable[..., str]) -> None:
    options = '{"sim": {"status": 400}}'

    printed = cli(
        "submit", "demo-chat", "No", "--options", options, "--tenant", "acme", "--wait", code=2
    )

    assert "vendor_rejected" in printed


def test_cli_ends_with_1_for_a_refusal_and_names_it(cli: Callable[..., str]) -> None:
    refused = json.loads(cli("submit", "nope", "x", "--tenant", "acme", "--json", code=1))

    assert refused["error"]["code"] == "model_not_found"


def test_cli_status_tells_whether_it_runs(cli: Callable[..., str], local: LocalStack) -> None:
    told = json.loads(cli("local", "status", "--json"))

    assert told["running"] is True
    assert told["api_url"] == local.api_url


def test_cli_rotates_a_key_and_both_open_the_api(
    local: LocalStack, cli: Callable[..., str]
) -> None:
    old = json.loads(cli("keys", "create", "rotary", "--scopes", "submit,read", "--json"))

    new = json.loads(cli("keys", "rotate", old["key_id"], "--overlap", "24h", "--json"))

    statuses = []
    for key in (old["key"], new["key"]):
        with client(local, key) as api:
            statuses.append(api.get("/jobs/job_01M8MG8BZK0FN56HXMX48ZSJAN").status_code)
    listed = json.loads(cli("keys", "list", "--tenant", "rotary", "--json"))
    assert statuses == [404, 404]
    assert {key["key_id"]: key["status"] for key in listed} == {
        old["key_id"]: "expiring",
        new["key_id"]: "live",
    }
    assert all(key["last_used_at"] for key in listed)
    assert new["scopes"] == ["submit", "read"]


def test_cli_makes_lists_and_revokes_keys(cli: Callable[..., str]) -> None:
    made = json.loads(cli("keys", "create", "hooli", "--scope", "read", "--json"))

    listed = json.loads(cli("keys", "list", "--tenant", "hooli", "--json"))
    revoked = json.loads(cli("keys", "revoke", made["key_id"], "--json"))

    assert [key["key_id"] for key in listed] == [made["key_id"]]
    assert listed[0]["scopes"] == ["read"]
    assert made["key"] not in json.dumps(listed)
    assert revoked["status"] == "revoked"

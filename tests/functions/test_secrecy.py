"""Nobody is told a key, a prompt, a result or an address: not by a log at any level, nor an error.

Whatever is secret is marked with `hunter2`, on every route and on the way of a job and a webhook.
"""

from __future__ import annotations

import gc
import json
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.adapters.http_vendors import HttpVendors
from sluiceway.adapters.sqs_webhooks import message_body
from sluiceway.domain.endpoint import CALLBACKS
from sluiceway.domain.errors import WebhookError
from sluiceway_local.simulator import Simulator

from tests.fakes.outside import FakeSecretsManager, FakeWebhookClient
from tests.functions.stage import request
from tests.functions.test_api import Broken
from tests.functions.test_bad_requests import (
    BAD_BODIES,
    CALLS,
    WITH_BODY,
    Call,
    Desk,
    assert_refused,
    of,
)
from tests.functions.test_deliver_webhook import Desk as Deliverer
from tests.functions.test_deliver_webhook import a_message
from tests.functions.test_every_form import FORMS, Partner, body_of
from tests.functions.test_run_job import ToSimulator
from tests.unit.logs import fresh_telemetry

if TYPE_CHECKING:
    from tests.functions.stage import Stage

KEY = {"Authorization": "Bearer swk_hunter2", "Idempotency-Key": "hunter2-1"}
HOOK = "https://hooks.partner.example/hunter2?token=hunter2"
BROKEN: Any = Broken(RuntimeError("hunter2"))


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.telemetry = fresh_telemetry(level="DEBUG")
    return stage


def told(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err + caplog.text


@pytest.mark.parametrize("form", FORMS)
def test_way_of_a_job_is_logged_without_its_secrets(  # case A05, A06
    stage: Stage,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    form: str,
) -> None:
    keys = FakeSecretsManager().vendor_keys(stage.clock)
    vendors = HttpVendors(api_keys=keys, clock=stage.clock)
    fault = '[[sim {"status": 503, "times": 1}]]'
    body = body_of(form, f"{fault} the prompt of hunter2")
    ours = {"callback_url": HOOK}
    if form in {"/jobs", "/batches"}:
        item = body["jobs"][0] if form == "/batches" else body
        item |= ours | {"metadata": {"name": "hunter2"}}
    else:
        body |= {"sluiceway": ours, "metadata": {"name": "hunter2"}, "user": "hunter2"}

    with Simulator() as sim:
        stage.vendors = ToSimulator(sim, vendors)
        job_id = Partner(stage, form).ask(body, headers=KEY).job_id
        for _ in range(8):
            stage.run_job(job_id)
            job = stage.world.jobs["acme", job_id]
            stage.clock.set(max(stage.clock.now_ms(), job.not_before_epoch_ms or 0))
        calls = sim.ledger.snapshot()["calls"]
    vendors.close()
    Partner(stage, form).ask(body, headers=KEY)
    for path in (f"/jobs/{job_id}", f"/responses/{job_id}", "/jobs", "/usage"):
        assert stage.answer(request("GET", path, headers=KEY)).status == 200

    lines = told(capsys, caplog)
    job = stage.world.jobs["acme", job_id]
    assert calls >= 2
    assert job.last_errors
    assert "hunter2" not in lines + repr((job.error, job.last_errors, job.job_key, stage.sent))
    assert len(lines.splitlines()) > 10


@of(WITH_BODY)
def test_refused_body_is_logged_without_its_text(  # case A05
    stage: Stage,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    call: Call,
) -> None:
    desk = Desk(stage)
    good = json.dumps({**call.body, "hunter2": "hunter2"})

    for change, _, _ in BAD_BODIES.values():
        desk.ask(call, raw=change(good), headers=KEY)

    lines = told(capsys, caplog)
    assert "hunter2" not in lines
    refused = len(BAD_BODIES) - call.may_be_empty  # a space is as none
    assert lines.count('"message":"request_refused"') == refused


@of(CALLS)
def test_unexpected_error_is_told_in_the_routes_form_without_its_text(  # case A06, V07
    stage: Stage,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    call: Call,
) -> None:
    desk = Desk(stage)
    event = desk.event(call, headers=KEY if call.keyed else KEY | {"Idempotency-Key": "1"})
    world = stage.world
    stage.world = stage.catalogue = stage.jobs = stage.cache = stage.state = BROKEN
    stage.batches = stage.payloads = stage.audit = BROKEN
    stage.registrar = stage.registrar._replace(endpoints=BROKEN, delivery_log=BROKEN)

    answer = stage.answer(event)

    stage.world = world
    assert_refused(call, answer, 500, "internal")
    assert "hunter2" not in answer.text + repr(answer.headers) + told(capsys, caplog)
    assert "Traceback" not in answer.text
    assert desk.changed() == []


@pytest.mark.parametrize("status", [204, 410, 503, WebhookError("connection", "hunter2")])
def test_way_of_a_webhook_is_logged_without_address_and_secret(  # case A05, A06
    stage: Stage,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    status: int | WebhookError,
) -> None:
    def call(method: str, path: str, body: Any = None) -> Any:
        event = request(method, f"/webhooks{path}", headers=KEY)
        event["body"] = None if body is None else json.dumps(body)
        return stage.answer(event)

    registered = call("POST", "", {"url": HOOK, "description": "hunter2"})
    webhook_id, secret = registered.body["id"], registered.body["secret"]
    rotated = call("POST", f"/{webhook_id}/rotate", {"overlap_s": 60}).body["secret"]
    call("POST", f"/{webhook_id}/test")
    call("POST", "", {"url": "https://127.0.0.1/hunter2"})
    deliverer = Deliverer(stage, client=FakeWebhookClient([status]))
    (delivery,) = stage.webhooks.taken
    deliverer.deliver(a_message(body=message_body(delivery)))
    deliverer.client.script = [status]
    deliverer.deliver(a_message("callback"))
    listed = call("GET", f"/{webhook_id}/deliveries").text
    call("POST", f"/{webhook_id}/deliveries/{delivery.delivery_id}/redeliver")
    call("POST", f"/{CALLBACKS}/rotate")
    call("DELETE", f"/{webhook_id}")

    lines = told(capsys, caplog) + repr(stage.world.audit)
    assert len(deliverer.client.posts) == 2
    for hidden in ("hunter2", "hooks.partner.example", secret, rotated, "whsec_"):
        assert hidden not in lines
        assert hidden not in listed


OURS = ("sluiceway.", "functions.", "aws_lambda_powertools.")


def reachable(*roots: object) -> set[str]:
    """Every text that these objects hold, however deep; others' code and classes hold none."""
    seen: dict[int, object] = {}
    rest = list(roots)
    while rest:
        one = rest.pop()
        theirs = isinstance(one, type | FunctionType) and not str(one.__module__).startswith(OURS)
        if id(one) not in seen and not theirs and not isinstance(one, ModuleType):
            seen[id(one)] = one
            rest.extend(gc.get_referents(one))
    return {one for one in seen.values() if isinstance(one, str)}


def test_nothing_of_a_request_is_left_in_the_process_that_answers_the_next(  # case A02
    stage: Stage,
) -> None:
    ours = [vars(module) for name, module in sys.modules.items() if name.startswith(OURS)]
    process = (*ours, stage.telemetry.logger, stage.telemetry.metrics)

    for form in FORMS:
        Partner(stage, form).ask(body_of(form, "hunter2 of acme"), headers=KEY)
    stage.telemetry.keys(batch_id="hunter2 in the logger")
    while_it_lasts = reachable(*process)
    stage.answer(request("GET", "/health"))
    afterwards = reachable(*process)

    assert any("hunter2" in text for text in while_it_lasts)
    assert not any("hunter2 of acme" in text for text in afterwards)
    assert not any("hunter2 in the logger" in text for text in afterwards)

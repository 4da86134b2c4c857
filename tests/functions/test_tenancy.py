"""Another tenant's ids: on every route they are as unknown ids are, whatever is looked at.

The API runs as bootstrap wires it, on moto's AWS, so that the calls to AWS are compared, too: what
makes other calls takes another time.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws
from sluiceway import bootstrap
from sluiceway.domain.ids import hit_id
from sluiceway.domain.webhook import Attempt, DeliveryStatus
from sluiceway.routes.table import ROUTES, allowed
from sluiceway.usecases.manage_webhooks import queue_test

from functions.api import app as api
from tests.fakes import examples
from tests.fakes.in_memory import NOW_MS, FakeClock, FakeFlags
from tests.functions.stage import request
from tests.template.calls import make_resources
from tests.unit.logs import a_context
from tests.unit.samples import CATALOGUE, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluiceway.routes.request import ApiDeps

ALL_SCOPES = "submit read cancel bypass admin"
RULES = {(method, path) for path, methods in ROUTES.items() for method in allowed(methods)}

UNKNOWN = {
    "job_id": "job_00000000000000000000000000",
    "hit_id": "hit_c1_" + "A" * 43,
    "batch_id": "batch_00000000000000000000000000",
    "webhook_id": "whk_00000000000000000000000000",
    "delivery_id": "dlv_01KDVDNA000000000000000000",
}
"""Ids of the form of ours that nobody has."""

BY_ID = [
    *(("GET", f"/jobs/<{one}>") for one in ("job_id", "ended_id", "hit_id")),
    *(("POST", f"/jobs/<{one}>/cancel") for one in ("job_id", "ended_id", "hit_id")),
    *(("GET", f"/responses/<{one}>") for one in ("job_id", "ended_id", "hit_id")),
    *(("POST", f"/responses/<{one}>/cancel") for one in ("job_id", "ended_id", "hit_id")),
    ("GET", "/batches/<batch_id>"),
    ("GET", "/webhooks/<webhook_id>"),
    ("DELETE", "/webhooks/<webhook_id>"),
    ("POST", "/webhooks/<webhook_id>/rotate"),
    ("POST", "/webhooks/<webhook_id>/test"),
    ("GET", "/webhooks/<webhook_id>/deliveries"),
    ("POST", "/webhooks/<webhook_id>/deliveries/<delivery_id>/redeliver"),
]
"""Every route with an id in its path, for each kind of thing that the id may name."""


class Api:
    """Two tenants' API, and what it calls."""

    def __init__(self, deps: ApiDeps) -> None:
        self.deps = deps
        self.calls: list[tuple[str, str]] = []

    def ask(
        self, method: str, path: str, tenant: str, body: Any = None, **changes: Any
    ) -> dict[str, Any]:
        """The proxy answer; what was called for it is in `calls`."""
        event = request(method, path, tenant=tenant, scopes=ALL_SCOPES, **changes)
        event["body"] = None if body is None else json.dumps(body)
        self.calls.clear()
        answer: dict[str, Any] = api.handle(event, a_context(), self.deps)
        return answer

    def body(self, method: str, path: str, tenant: str, body: Any = None, **changes: Any) -> Any:
        return json.loads(self.ask(method, path, tenant, body, **changes)["body"])

    def hear(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        """botocore says that a client is called."""
        self.calls.append((model.name, str(params.get("TableName") or params.get("Bucket"))))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with mock_aws():
        session = boto3.Session(region_name="us-east-1")
        monkeypatch.setattr(bootstrap, "session", lambda: session._session)
        monkeypatch.setattr(bootstrap, "SystemClock", FakeClock)
        for name, value in make_resources(session, "dynamodb").items():
            monkeypatch.setenv(name, value)
        deps = bootstrap.api_deps.__wrapped__().build(CATALOGUE, FakeFlags())
        made = Api(deps)
        session.events.register("provide-client-params", made.hear)
        yield made


@pytest.fixture
def acmes(both: Api) -> dict[str, str]:
    """Ids of each kind, all of them acme's."""
    submit = {"model": "demo-chat", "input": "ours"}
    job_id = both.body("POST", "/jobs", "acme", submit)["id"]
    ended_id = both.body("POST", "/jobs", "acme", submit | {"input": "over"})["id"]
    both.ask("POST", f"/jobs/{ended_id}/cancel", "acme")
    batch = both.body("POST", "/batches", "acme", {"jobs": [submit | {"custom_id": "a"}]})
    webhook_id = _a_webhook(both, "acme")
    return {
        "job_id": job_id,
        "ended_id": ended_id,
        "hit_id": _a_hit(both),
        "batch_id": batch["id"],
        "webhook_id": webhook_id,
        "delivery_id": _a_delivery(both, webhook_id),
    }


def _a_webhook(both: Api, tenant: str) -> str:
    wanted = {"url": f"https://{tenant}.example/hook"}
    webhook_id: str = both.body("POST", "/webhooks", tenant, wanted)["id"]
    return webhook_id


def _a_delivery(both: Api, webhook_id: str) -> str:
    """That was tried, so that it is in the list."""
    registrar = both.deps.registrar()
    delivery = queue_test("acme", webhook_id, "correlation-1", registrar=registrar).delivery
    registrar.delivery_log.record(delivery, Attempt(NOW_MS, DeliveryStatus.DELIVERED, 204))
    return delivery.delivery_id


def _a_hit(both: Api) -> str:
    """Of an entry that acme alone may read."""
    jobs, job = both.deps.submitter.jobs, examples.a_job(7)
    jobs.submit(job, shard_caps=[100])
    jobs.apply(job, examples.completed(job), entry=examples.an_entry(job))
    return hit_id(job.cache_key)


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """All that a client sees."""
    return {name: answer[name] for name in ("statusCode", "multiValueHeaders", "body")}


def path_of(rule: str, ids: dict[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda found: ids[found[1]], rule)


def unknown_to(rule: str) -> dict[str, str]:
    kind = {"ended_id": "job_id"}
    return {name: UNKNOWN[kind.get(name, name)] for name in re.findall(r"<(\w+)>", rule)}


def test_every_route_with_an_id_is_tried() -> None:
    with_ids = {(method, path) for method, path in RULES if "<" in path and method != "HEAD"}
    tried = {(method, re.sub(r"<(ended|hit)_id>", "<job_id>", rule)) for method, rule in BY_ID}

    assert with_ids - {("GET", "/models/<name>")} == tried


@pytest.mark.proves(10, on="moto")
@pytest.mark.parametrize(("method", "rule"), BY_ID)
def test_id_of_another_tenant_is_as_an_unknown_one(  # case A03
    both: Api, acmes: dict[str, str], method: str, rule: str
) -> None:
    own = both.ask(method, path_of(rule, acmes), "acme")
    mine = both.ask(method, path_of(rule, unknown_to(rule)), "globex")
    calls_for_unknown = list(both.calls)

    theirs = both.ask(method, path_of(rule, acmes), "globex")

    assert theirs["statusCode"] == 404
    assert told(theirs) == told(mine)
    assert both.calls == calls_for_unknown
    not_a_job = rule.startswith(("/jobs/<hit_id>/", "/responses/<hit_id>/"))
    assert (own["statusCode"] == 404) is not_a_job  # else it would be unknown to anybody


def test_delivery_of_another_tenants_endpoint_is_unknown_at_ones_own(
    both: Api, acmes: dict[str, str]
) -> None:
    own = _a_webhook(both, "globex")
    mine = both.ask(
        "POST", f"/webhooks/{own}/deliveries/{UNKNOWN['delivery_id']}/redeliver", "globex"
    )
    calls_for_unknown = list(both.calls)

    theirs = both.ask(
        "POST", f"/webhooks/{own}/deliveries/{acmes['delivery_id']}/redeliver", "globex"
    )

    assert theirs["statusCode"] == 404
    assert told(theirs) == told(mine)
    assert both.calls == calls_for_unknown


@pytest.mark.proves(10, on="moto")
def test_lists_of_another_tenant_show_nothing(both: Api, acmes: dict[str, str]) -> None:
    cursors = [None, {"after": acmes["job_id"]}, {"after": acmes["ended_id"]}]

    pages = [both.body("GET", "/jobs", "globex", query=query) for query in cursors]

    assert [page["data"] for page in pages] == [[], [], []]
    assert both.body("GET", "/usage", "globex")["data"] == []
    assert both.body("GET", "/usage", "acme")["data"]
    webhooks = both.body("GET", "/webhooks", "globex")["data"]
    assert [webhook["id"] for webhook in webhooks] == ["callbacks"]
    deliveries = both.body(
        "GET", "/webhooks/callbacks/deliveries", "globex", query={"after": acmes["delivery_id"]}
    )
    assert deliveries["data"] == []


FORMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/jobs": lambda text: {"model": "demo-chat", "input": text},
    "/batches": lambda text: {"jobs": [{"custom_id": "a", "model": "demo-chat", "input": text}]},
    "/chat/completions": lambda text: {
        "model": "demo-chat",
        "messages": [{"role": "user", "content": text}],
    },
    "/responses": lambda text: {"model": "demo-chat", "input": text, "background": True},
}


@pytest.mark.proves(10, on="moto")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of_acme", ["open", "cached"])
def test_same_request_of_another_tenant_is_as_if_nobody_had_asked(  # case A01
    both: Api, form: str, of_acme: str
) -> None:
    """Neither the answer nor the calls that it takes tell what acme has."""
    both.deps = both.deps._replace(hold_s=0)
    body = FORMS[form]
    submitter = both.deps.submitter
    job_id = both.body("POST", "/jobs", "acme", FORMS["/jobs"]("ours"))["id"]
    if of_acme == "cached":
        job = submitter.jobs.get("acme", job_id)
        assert job is not None
        entry = examples.an_entry(job, result=packed({"text": "ours", "finish_reason": "stop"}))
        submitter.jobs.apply(job, examples.completed(job), entry=entry)
        assert both.ask("POST", "/jobs", "acme", FORMS["/jobs"]("ours"))["statusCode"] == 200
    both.ask("POST", form, "globex", body("the first of all"))  # it learns the epochs

    mine = both.ask("POST", form, "globex", body("nobody's"))
    calls_for_mine = list(both.calls)
    theirs = both.ask("POST", form, "globex", body("ours"))

    assert job_id not in theirs["body"]
    assert _nameless(theirs) == _nameless(mine)
    assert both.calls == calls_for_mine


def _nameless(answer: dict[str, Any]) -> str:
    """All that a client sees but the ids of what it made itself."""
    return re.sub(r"(job|batch|msg|resp)_[0-9A-Z]{26}", r"\1_ID", repr(told(answer)))


@pytest.mark.parametrize("tenant", ["", None, 0])
def test_no_route_works_without_a_tenant(both: Api, tenant: Any) -> None:  # case A04
    keyless = {"/health", "/openapi.json"}
    ids = {"job_id": UNKNOWN["job_id"], "name": "demo-chat"} | UNKNOWN

    answers = {
        (both.ask(method, path_of(path, ids), tenant, {})["statusCode"], *both.calls)
        for method, path in RULES
        if path not in keyless
    }

    assert answers == {(401,)}  # and nothing was called

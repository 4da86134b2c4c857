"""The documents say what the code does: nothing is undocumented, and nothing documented is gone."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import pytest
from pydantic import BaseModel
from samtranslator.yaml_helper import yaml_parse
from sluiceway import bootstrap, telemetry
from sluiceway.adapters import (
    dynamodb_audit,
    dynamodb_backlog,
    dynamodb_batches,
    dynamodb_cache,
    dynamodb_deliveries,
    dynamodb_endpoints,
    dynamodb_jobs,
    dynamodb_state,
)
from sluiceway.adapters.dynamodb import Table
from sluiceway.batch_http import batch_reply
from sluiceway.domain import catalogue, errors, webhook
from sluiceway.domain.backlog import Place
from sluiceway.domain.batch import Batch, BatchItem, Refusal
from sluiceway.domain.endpoint import NO_ENDPOINTS, Endpoint, Secret
from sluiceway.domain.freshness import Freshness
from sluiceway.domain.gate import Gate
from sluiceway.domain.job import JobError, JobStatus
from sluiceway.domain.openai_request import ChatRequest, Ours, ResponsesRequest
from sluiceway.domain.payload import Payload
from sluiceway.domain.request import CacheRequest, SubmitRequest
from sluiceway.http import STATUS, delivery_body, dry_run_reply, hit_reply, job_reply, webhook_body
from sluiceway.openai_http import CANCELLED, FAILED_STATUS
from sluiceway.ports import AuditRecord, PartnerKey
from sluiceway.usecases.sweep_jobs import Swept
from sluiceway_cli.main import cli
from sluiceway_local import simulator, state

from tests.contract.clients import ScriptedClient
from tests.fakes.examples import a_delivery, a_job, a_partner_key, an_entry, completed, failed
from tests.fakes.in_memory import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
LAYER = ROOT / "layers/core/sluiceway"

ARCHITECTURE = "docs/architecture.md"
CACHING = "docs/caching.md"
GLOSSARY = "docs/glossary.md"
LOCAL = "docs/local.md"
OPERATIONS = "docs/operations.md"
RUNBOOK = "docs/runbook.md"

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "client/*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
)
DECISIONS = [name for name in DOCUMENTS if name.startswith("docs/adr/")]

MARKETING = (
    *("amazing", "awesome", "battle-tested", "best-in-class", "blazing", "bulletproof"),
    *("cutting-edge", "delightful", "effortless", "elegant", "enterprise-grade", "game-changer"),
    *("industry-leading", "leverage", "lightning", "magic", "modern", "next-generation"),
    *("powerful", "revolutionary", "rock-solid", "robust", "seamless", "simply", "sophisticated"),
    *("state-of-the-art", "supercharge", "unleash", "unlock", "unparalleled", "world-class"),
)

Row = list[str]


# ------------------------------------------------------------------------------------ reading


@cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def prose_of(document: str) -> list[tuple[int, str]]:
    """The lines outside code blocks, with their numbers."""
    lines, fenced = [], False
    for number, line in enumerate(text_of(document).splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            lines.append((number, line))
    return lines


def section(document: str, title: str) -> str:
    """A section of the document, up to the next heading; code blocks are left out."""
    lines = [line for _, line in prose_of(document)]
    starts = [at for at, line in enumerate(lines) if re.fullmatch(rf"#+ {re.escape(title)}", line)]
    assert starts, f"{document} has no section {title!r}"
    rest = lines[starts[0] + 1 :]
    ends = [at for at, line in enumerate(rest) if re.match(r"#+ ", line)]
    return "\n".join(rest[: ends[0] if ends else None])


def rows_of(text: str) -> Iterator[Row]:
    """The rows of the tables in a text, without their heads."""
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|--") and not after.startswith("|--"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def first_column(document: str, title: str) -> set[str]:
    """What the first column of a section's tables names."""
    return {name for row in rows_of(section(document, title)) for name in names_in(row[0])}


def anchors_of(document: str) -> set[str]:
    """As GitHub makes them."""
    heads = [line for _, line in prose_of(document) if re.match(r"#{1,6} ", line)]
    return {
        re.sub(r"[^\w\- ]", "", head.lstrip("# ").lower()).strip().replace(" ", "-")
        for head in heads
    }


@cache
def template() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text("utf-8"))
    return parsed


# ------------------------------------------------------------------------------------ form


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    prose = "\n".join(line for _, line in prose_of(document))
    links = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose)

    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        found = target.exists() and (
            not anchor or anchor in anchors_of(target.relative_to(ROOT).as_posix())
        )
        if not found:
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_prose_has_one_sentence_per_line(document: str) -> None:
    # What stands in bold at the beginning is a name, and numbers of items are no sentences.
    begun = re.compile(r"\s*(?:\d+\. |- )?(?:\*\*[^*]+\*\*)?")
    several = [
        f"{document}:{number}: {line}"
        for number, line in prose_of(document)
        if not line.startswith("|")
        and re.search(r"[a-z0-9)`\"*][.!?][*)]* +[A-Z]", begun.sub("", line, count=1))
    ]

    assert several == []


@pytest.mark.parametrize("title", ["Guarantees", "Hazards"])
def test_numbers_of_guarantees_and_hazards_are_in_order(title: str) -> None:
    numbers = [
        int(number)
        for number in re.findall(r"^(\d+)\. ", section(ARCHITECTURE, title), re.MULTILINE)
    ]

    assert numbers
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_sell_nothing(document: str) -> None:
    text = text_of(document).lower()

    assert [word for word in MARKETING if re.search(rf"\b{re.escape(word)}\b", text)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_hold_for_every_machine(document: str) -> None:
    assert re.findall(r"(?<![\w.])/(?:home|root|Users|work|tmp|opt)/\S*", text_of(document)) == []


@pytest.mark.parametrize("document", DECISIONS)
def test_decision_is_short_and_has_its_parts(document: str) -> None:
    text = text_of(document)

    assert len(text.splitlines()) <= 40
    for part in ("## Context", "## Decision", "## Consequences"):
        assert part in text, f"{document} lacks {part}"
    assert re.search(r"(one|two)-way door", text, re.IGNORECASE)
    assert Path(document).name in text_of(ARCHITECTURE)


# ------------------------------------------------------------------------------------ template


@pytest.mark.parametrize("tool", ["LocalStack", "moto", "SAM"])
def test_way_from_another_tool_installs_what_it_runs(tool: str) -> None:
    way = text_of(LOCAL).split(f"### If you know {tool}\n")[1].split("\n#")[0]

    first, commands = way.split("```sh\n")[1].split("\n", 1)

    needed = ".venv/dev" if "pytest" in commands else ".venv/local"
    assert first.startswith(f"make {needed}")


def test_parameters_are_documented_with_their_defaults() -> None:
    documented = {
        (names_in(row[0])[0], names_in(row[1])[0])
        for row in rows_of(section(OPERATIONS, "Parameters"))
        if names_in(row[0]) and len(names_in(row[1])) == 1 and len(row) == 3
    }

    parameters = {
        (name, str(parameter["Default"]) or '""')
        for name, parameter in template()["Parameters"].items()
    }

    assert parameters == documented


def test_concurrency_is_documented() -> None:
    documented = {
        names_in(row[0])[0]: tuple(row[1:])
        for row in rows_of(section(OPERATIONS, "Parameters"))
        if len(row) == 4
    }

    mapping = template()["Mappings"]["Concurrency"]

    assert documented == {
        str(choice): (
            "nothing" if choice == "off" else str(row["Reserved"]),
            str(row["Interactive"]),
            str(row["Batch"]),
        )
        for choice, row in mapping.items()
    }


def test_functions_are_documented() -> None:
    functions = {path.parent.name for path in ROOT.glob("functions/*/app.py")}

    assert functions == first_column(ARCHITECTURE, "Shape")


def test_outputs_are_documented() -> None:
    assert set(template()["Outputs"]) == first_column(OPERATIONS, "Outputs")


def test_environment_is_documented() -> None:
    read = {field.name.upper() for field in fields(bootstrap.Settings)}
    cli_sources = "".join(path.read_text("utf-8") for path in (ROOT / "cli").rglob("*.py"))
    read |= set(re.findall(r'"(SLUICEWAY_[A-Z_]+|AWS_[A-Z_]+)"', cli_sources))
    set_by_template = set(template()["Globals"]["Function"]["Environment"]["Variables"])
    for resource in template()["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            set_by_template |= set(resource["Properties"]["Environment"]["Variables"])

    assert read | set_by_template == first_column(OPERATIONS, "Environment variables")


# ------------------------------------------------------------------------------------ code


def constants(node: ast.expr) -> set[str]:
    """The texts that an expression may give."""
    if isinstance(node, ast.IfExp):
        return constants(node.body) | constants(node.orelse)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()


def job_error_codes() -> set[str]:
    """What the library gives to `VendorError`, to `JobError` and to `_error(job, code, …)`."""
    found: set[str] = set()
    for path in {*LAYER.rglob("*.py")} - {LAYER / "domain/errors.py"}:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name("VendorError"), args=[code, *_]):
                    found |= constants(code)
                case ast.Call(func=ast.Name("_error"), args=[_, code, *_]):
                    found |= constants(code)
                case ast.Call(func=ast.Name("JobError"), keywords=given):
                    found |= {
                        name
                        for keyword in given
                        if keyword.arg == "code"
                        for name in constants(keyword.value)
                    }
                case ast.Assign(targets=[ast.Name("code")], value=value):
                    found |= constants(value)
                case ast.Assign(targets=[ast.Tuple([ast.Name("code"), *_])], value=ast.Tuple(some)):
                    found |= constants(some[0])
    return found


def leaves(kind: type[errors.SluicewayError]) -> Iterator[type[errors.SluicewayError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from leaves(below)


def gateway_codes() -> dict[str, int]:
    """Codes of the errors that API Gateway answers by itself."""
    replies = template()["Resources"]["Api"]["Properties"]["GatewayResponses"].values()
    found = {}
    for reply in replies:
        code = re.search(r'"code":"([a-z_]+)"', reply["ResponseTemplates"]["application/json"])
        assert code is not None
        found[code[1]] = int(reply.get("StatusCode", 400))
    return found


def test_error_codes_are_documented_with_their_status() -> None:
    documented = {
        names_in(row[0])[0]: int(row[1]) for row in rows_of(section(ARCHITECTURE, "Errors"))
    }

    assert {**STATUS, **gateway_codes()} == documented
    assert {kind.code for kind in leaves(errors.SluicewayError)} <= set(documented)


def test_error_codes_are_documented_with_whether_to_try_again() -> None:
    documented = {
        names_in(row[0])[0]: row[2] == "yes" for row in rows_of(section(ARCHITECTURE, "Errors"))
    }
    busy = {kind.code for kind in leaves(errors.BusyError)}

    assert documented == {
        code: code in busy or status >= 500 or code == "rate_limited"
        for code, status in {**STATUS, **gateway_codes()}.items()
    }


def test_job_error_codes_are_documented() -> None:
    assert job_error_codes() == first_column(ARCHITECTURE, "Error codes of jobs")


def test_runbook_decides_on_error_codes_that_there_are() -> None:
    assert first_column(RUNBOOK, "Decide") <= job_error_codes()


def test_runbook_is_found_from_where_operators_look() -> None:
    assert "(runbook.md" in text_of(OPERATIONS)
    assert "(docs/runbook.md" in text_of("README.md")


def test_each_command_of_dead_letters_is_in_the_runbook() -> None:
    named = {name for name in dict(commands(cli, "sluiceway")) if " dlq " in name}
    shown = {f"sluiceway {' '.join(words[:2])}" for words in examples_in(RUNBOOK)}

    assert named <= shown


def test_events_and_metrics_are_documented() -> None:
    documented = {
        names_in(row[0])[0]: row[2] for row in rows_of(section(OPERATIONS, "Events and metrics"))
    }

    def shown(metric: telemetry.Metric) -> str:
        unit = metric.unit.value
        return metric.name if unit == "Count" else f"{metric.name} ({unit})"

    assert documented == {
        name: ", ".join(map(shown, metrics)) for name, metrics in telemetry.EVENTS.items()
    }


def test_events_of_the_bus_are_documented() -> None:
    documented = {
        names_in(row[0])[0]: names_in(row[1])[0]
        for row in rows_of(section(ARCHITECTURE, "Event bus and webhooks"))
    }

    assert documented == webhook.DETAIL_TYPES


def test_counts_of_a_sweep_are_documented() -> None:
    assert {field.name for field in fields(Swept)} == first_column(OPERATIONS, "The sweeper")


def test_limits_are_what_the_code_says() -> None:
    wrong = []
    for row in rows_of(section(ARCHITECTURE, "Limits")):
        module, _, name = names_in(row[2])[0].rpartition(".")
        number = re.match(r"[\d,.]+", row[1])
        assert number is not None, row
        value = getattr(importlib.import_module(module), name)
        if float(number[0].replace(",", "")) != value:
            wrong.append((row, value))

    assert wrong == []


def test_numbers_that_depend_on_each_other_name_their_tests() -> None:
    title = "Numbers that depend on each other"
    tests = [names_in(row[2])[0] for row in rows_of(section(ARCHITECTURE, title))]

    missing = [
        test
        for test in tests
        for path, _, name in [test.partition("::")]
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text("utf-8")
    ]

    assert tests
    assert missing == []


# ------------------------------------------------------------------------------------ catalogue


def catalogue_members(
    model: type[BaseModel] = catalogue.Catalogue, prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Path and default of each member, as TOML has them."""
    named = {
        "vendors": catalogue.Vendor,
        "models": catalogue.Model,
        "tenants": catalogue.Tenant,
    }
    for name, field in model.model_fields.items():
        kind = field.annotation
        if not prefix and name in named:
            yield from catalogue_members(named[name], f"{name}.NAME.")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from catalogue_members(kind, f"{prefix}{name}.")
        elif field.is_required():
            yield f"{prefix}{name}", "required"
        else:
            yield f"{prefix}{name}", toml(field.default)


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_catalogue_is_documented_with_its_defaults() -> None:
    documented = {
        names_in(row[0])[0]: (names_in(row[1]) or [row[1]])[0]
        for row in rows_of(section(OPERATIONS, "The catalogue"))
    }

    assert dict(catalogue_members()) == documented


# ------------------------------------------------------------------------------------ API, tables


def test_members_of_a_submit_are_documented() -> None:
    assert set(SubmitRequest.model_fields) == first_column(ARCHITECTURE, "Members of a submit")


def test_members_of_openais_requests_are_documented() -> None:
    rows = list(rows_of(section(ARCHITECTURE, "OpenAI-compatible routes")))

    for form, schema in (("chat", ChatRequest), ("response", ResponsesRequest)):
        documented = [
            name
            for row in rows
            if len(row) == 3 and row[1] in {form, "both"}
            for name in names_in(row[0])
        ]
        assert sorted(documented) == sorted(schema.model_fields)


def test_what_is_ours_in_openais_requests_is_documented() -> None:
    rows = rows_of(section(ARCHITECTURE, "OpenAI-compatible routes"))
    (told,) = (row[2] for row in rows if names_in(row[0]) == ["sluiceway"])

    assert set(names_in(told)) == {*Ours.model_fields, "extra_body"}


def test_statuses_of_held_calls_whose_jobs_failed_are_documented() -> None:
    rows = rows_of(section(ARCHITECTURE, "OpenAI-compatible routes"))
    documented = {name: int(row[1]) for row in rows if len(row) == 2 for name in names_in(row[0])}

    assert documented == {**FAILED_STATUS, CANCELLED: 409}
    assert set(FAILED_STATUS) <= job_error_codes()


def test_what_a_request_can_ask_of_the_cache_is_documented() -> None:
    documented = first_column(CACHING, "What a request can ask for")
    mode = CacheRequest.model_fields["mode"]

    assert documented == {*CacheRequest.model_fields, *get_args(mode.annotation)}
    assert mode.default == "use"


def test_what_an_answer_says_of_the_cache_is_documented() -> None:
    rows = list(rows_of(section(CACHING, "What the answer says")))
    told = {(names_in(row[2])[0], names_in(row[5])[0]) for row in rows if names_in(row[2])}
    soft_ms = NOW_MS + 1_800_000
    entry = an_entry(a_job(), soft_expires_at_epoch_ms=soft_ms)
    from_cache = completed(a_job(), source="cache", stored_at_ms=NOW_MS)

    replies = [
        hit_reply(entry, freshness, b"{}", base_path="/v1", now_ms=soft_ms + ms)
        for freshness, ms in (
            (Freshness.FRESH, -1_740_000),
            (Freshness.STALE, 200_000),
            (Freshness.EXPIRED, 1_900_000),
        )
    ]
    replies += [
        job_reply(202, a_job(cache_mode=mode), None, base_path="/v1", now_ms=NOW_MS)
        for mode in ("use", "refresh", "bypass")
    ]
    replies.append(job_reply(200, from_cache, b"{}", base_path="/v1", now_ms=NOW_MS))

    given = {(reply.body["cache"]["status"], reply.headers["Cache-Status"]) for reply in replies}

    assert given == told


def test_members_of_a_job_are_documented() -> None:
    entry, job = an_entry(a_job(), b"{}"), completed(a_job())
    replies = [
        job_reply(200, job, b"{}", base_path="/v1", now_ms=NOW_MS),
        job_reply(200, failed(a_job()), None, base_path="/v1", now_ms=NOW_MS),
        job_reply(
            200,
            a_job(),
            None,
            base_path="/v1",
            now_ms=NOW_MS,
            fallback=(entry, b"{}"),
            place=Place(1, 1_000),
        ),
        hit_reply(entry, Freshness.FRESH, b"{}", base_path="/v1", now_ms=NOW_MS),
    ]

    members = {name for reply in replies for name in reply.body} | {"result_url"}

    assert members == first_column(ARCHITECTURE, "Members of a job")


def test_members_of_a_batch_are_documented() -> None:
    refused = BatchItem("a", refusal=Refusal("degraded", "Later.", ({"field": "model"},), 5))
    reply = batch_reply(
        202,
        Batch("acme", "batch_1", NOW_MS, NOW_MS // 1000, (refused,)),
        {},
        {},
        base_path="/v1",
        now_ms=NOW_MS,
        places={},
    )
    text = section(ARCHITECTURE, "Batches")
    (item,) = reply.body["data"]
    below = {*item, *item["error"], *reply.body["request_counts"], *reply.body["usage"]}

    assert set(reply.body) == first_column(ARCHITECTURE, "Batches")
    assert [name for name in below if f"`{name}`" not in text] == []


def test_members_of_a_dry_run_are_documented() -> None:
    reply = dry_run_reply(
        a_job(),
        now_ms=NOW_MS,
        tokens=(1, 1),
        cost_nanos=1,
        place=Place(1, 1_000),
        deduplicated=False,
        hit=None,
    )

    assert set(reply.body) == first_column(ARCHITECTURE, "Dry runs")


def test_states_are_in_the_diagram_and_the_codes_are_open_or_final() -> None:
    text = section(ARCHITECTURE, "States")

    assert [status for status in JobStatus if status.value not in text] == []


def test_attributes_of_jobs_are_documented() -> None:
    documented = first_column(ARCHITECTURE, "Jobs")

    assert {*dynamodb_jobs._values_of(a_job()), "written_by"} == documented


def test_members_of_an_error_are_documented() -> None:
    text = section(ARCHITECTURE, "Jobs")

    assert [field.name for field in fields(JobError) if f"`{field.name}`" not in text] == []


def test_attributes_of_cache_entries_are_documented() -> None:
    entry = an_entry(a_job(), result=Payload(ref="name"))

    assert set(dynamodb_cache._values_of(entry)) == first_column(ARCHITECTURE, "Cache")


def test_attributes_of_audit_records_are_documented() -> None:
    text = section(ARCHITECTURE, "Audit records")
    owner = dynamodb_audit._owner(NOW_MS).partition("#")[0]

    assert [name for name in AuditRecord._fields if f"`{name}`" not in text] == []
    assert f"`{owner}#<" in text


def test_attributes_of_batches_are_documented() -> None:
    text = section(ARCHITECTURE, "Batch rows")
    kinds = (BatchItem, Refusal)
    members = {field.name for kind in kinds for field in fields(kind)} | {"items"}
    owner = dynamodb_batches._key("acme", "batch_1")["tenant"].partition("#")[0]

    assert [name for name in members if f"`{name}`" not in text] == []
    assert f"`{owner}#<" in text


def test_attributes_of_endpoints_are_documented() -> None:
    endpoint = Endpoint("whk_1", "https://a.example/", (), "", 1, (Secret(1),), 1, "gone")

    assert set(dynamodb_endpoints._values_of(endpoint)) == first_column(ARCHITECTURE, "Endpoints")
    text = section(ARCHITECTURE, "Endpoints")
    assert [field.name for field in fields(Secret) if f"`{field.name}`" not in text] == []
    key = dynamodb_endpoints._key("<tenant>")
    assert [value for value in key.values() if f"`{value}`" not in text] == []


def test_attributes_of_deliveries_are_documented() -> None:
    client = ScriptedClient()
    log = dynamodb_deliveries.DynamoDBDeliveries(Table(client), "jobs")  # type: ignore[arg-type]
    log.record(a_delivery(), webhook.Attempt(1, webhook.DeliveryStatus.FAILED, 500, "refused"))
    (request,) = client.requests

    names = set(request["ExpressionAttributeNames"].values())

    assert names == first_column(ARCHITECTURE, "Deliveries")
    assert f"`{dynamodb_deliveries._owner('<tenant>', '<endpoint id>')}`" in section(
        ARCHITECTURE, "Deliveries"
    )


def test_members_of_a_webhook_endpoint_are_documented() -> None:
    body = webhook_body(NO_ENDPOINTS[0], "whsec_")

    assert set(body) == first_column(ARCHITECTURE, "Webhook endpoints")


def test_members_and_errors_of_a_delivery_are_documented() -> None:
    body = delivery_body(webhook.DeliveryRecord(a_delivery()))
    sources = ("usecases/deliver_webhook.py", "adapters/http_webhooks.py")
    sources += ("adapters/secrets_manager_webhooks.py",)
    text = "".join((LAYER / name).read_text("utf-8") for name in sources)
    reasons = set(re.findall(r'WebhookError\(\s*"(\w+)"', text))
    ours = {"gone", "redirected", "refused", "unwanted"}

    assert [name for name in ours if f'"{name}"' not in text] == []
    assert {*body, *reasons, *ours} == first_column(ARCHITECTURE, "Deliveries of webhooks")


def test_coordination_rows_are_documented() -> None:
    sources = (
        "adapters/dynamodb_jobs.py",
        "adapters/dynamodb_gates.py",
        "adapters/dynamodb_owed_answers.py",
        "adapters/dynamodb_rates.py",
        "domain/gate.py",
        "domain/timeouts.py",
    )
    source = "".join((LAYER / name).read_text("utf-8") for name in sources)
    kinds = set(re.findall(r'f"(\w+)#\{', source))
    kinds |= {*dynamodb_state.STATE_KEY.values(), *dynamodb_backlog.BACKLOG_KEY.values()}

    documented = {name.partition("#")[0] for name in first_column(ARCHITECTURE, "Coordination")}

    assert kinds == documented


def test_attributes_of_gates_are_documented() -> None:
    text = section(ARCHITECTURE, "Coordination")

    assert [field.name for field in fields(Gate) if f"`{field.name}`" not in text] == []


def test_attributes_of_partners_are_documented() -> None:
    attributes = {*PartnerKey._fields} | {"ttl_epoch_s"}

    assert a_partner_key()
    assert attributes == first_column(ARCHITECTURE, "Partners")


# ------------------------------------------------------------------------------------ command line


def commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def test_commands_are_documented_with_their_options() -> None:
    documented = {
        names_in(row[0])[0]: {name.strip("[]") for name in names_in(row[1])}
        for row in rows_of(section(OPERATIONS, "The command line"))
        if row[0].startswith("`sluiceway ")
    }

    def told(command: click.Command) -> set[str]:
        return {
            parameter.opts[0] if isinstance(parameter, click.Option) else parameter.name.upper()
            for parameter in command.params
            if parameter.name
        }

    assert {name: told(command) for name, command in commands(cli, "sluiceway")} == documented


def examples_in(document: str) -> Iterator[list[str]]:
    """The arguments of each call of the command line in the code blocks."""
    blocks = re.findall(r"^[ ]*```sh\n(.*?)^[ ]*```", text_of(document), re.DOTALL | re.MULTILINE)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        if found := re.search(r"(?:^|[\s/(])sluiceway (?!=)(.*)", line.partition(" # ")[0]):
            yield shlex.split(found[1].partition("|")[0].rstrip(" )"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_of_the_command_line_can_be_typed(document: str) -> None:
    known = dict(commands(cli, "sluiceway"))

    wrong = []
    for words in examples_in(document):
        if words[0] == "--stack":
            words = words[2:]  # noqa: PLW2901
        names = [f"sluiceway {' '.join(words[:length])}" for length in (1, 2)]
        command = next((known[name] for name in names if name in known), None)
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        if command is None or not options <= {
            option for parameter in command.params for option in parameter.opts
        }:
            wrong.append(words)

    assert wrong == []


def test_options_of_local_up_are_explained() -> None:
    up = dict(commands(cli, "sluiceway"))["sluiceway local up"]

    assert {option.opts[0] for option in up.params} == first_column(LOCAL, "Up and down")


def test_targets_of_make_are_documented() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))

    documented = {name.removeprefix("make ") for name in first_column("CONTRIBUTING.md", "Set-up")}

    assert explained <= documented
    assert documented <= set(phony[1].split())


# ------------------------------------------------------------------------------------ local stack


def test_members_of_local_json_are_documented() -> None:
    members = {field.name for field in fields(state.LocalStack)}

    assert members <= first_column(LOCAL, "What is written down")


def test_faults_of_the_simulator_are_documented() -> None:
    assert {field.name for field in fields(simulator.Fault)} == first_column(LOCAL, "Faults")


def test_control_of_the_simulator_is_documented() -> None:
    source = Path(simulator.__file__).read_text("utf-8")

    assert set(re.findall(r'case "([A-Z]+ /_control/\w+)"', source)) == first_column(
        LOCAL, "Control"
    )


def test_options_of_the_simulator_are_documented() -> None:
    source = Path(simulator.__file__).read_text("utf-8")

    options = set(re.findall(r'add_argument\("(--[a-z-]+)"', source))

    assert options == first_column(LOCAL, "The vendor simulator")


# ------------------------------------------------------------------------------------ glossary


def test_glossary_points_at_what_is_there() -> None:
    named = [name for row in rows_of(text_of(GLOSSARY)) for name in names_in(row[2])]

    assert [name for name in named if name.startswith("sluiceway.") and not resolves(name)] == []


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if part in getattr(found, "__annotations__", {}):
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False

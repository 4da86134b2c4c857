"""Samples of what a release stores and sends, kept in tests/contract/released.

`python -m tests.contract.release` writes those of the code as it is, under the version that
pyproject.toml names.
"""

from __future__ import annotations

import base64
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluiceway.adapters.dynamodb import Table, from_item, to_item
from sluiceway.adapters.dynamodb_batches import _values_of as values_of_batch
from sluiceway.adapters.dynamodb_gates import DynamoDBGates, gate_of
from sluiceway.adapters.dynamodb_jobs import _values_of as values_of_job
from sluiceway.adapters.dynamodb_latencies import DynamoDBLatencies
from sluiceway.adapters.dynamodb_owed_answers import DynamoDBOwedAnswers
from sluiceway.adapters.sqs_queue import message_body, read_body
from sluiceway.adapters.sqs_webhooks import message_body as webhook_body
from sluiceway.adapters.sqs_webhooks import read_body as read_webhook
from sluiceway.adapters.valkey_cache import _entry_of as entry_in_valkey
from sluiceway.adapters.valkey_cache import _values_of as values_in_valkey
from sluiceway.domain.batch import Batch, BatchItem, Refusal
from sluiceway.domain.freshness import Freshness, KeptHit
from sluiceway.domain.gate import Room
from sluiceway.ports import DayBudget, Started

from tests.contract.harness import start, store_on
from tests.contract.test_stored_values import a_full_job
from tests.fakes.examples import a_delivery, a_job, an_entry
from tests.fakes.in_memory import NOW_MS, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

    from tests.contract.harness import Store, Tables

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "released"

Sample = dict[str, Any]
"""`kind`, and what was written: `item` in `table`, a `message`, or a `hash` of Valkey; `seen`: what
the code that wrote it reads in it."""

DAY = "2026-01-01"
OTHER = a_job(99)
"""A job that meets what is stored."""


# ------------------------------------------------------------------------------------ writing


def written(rows: Mapping[str, list[dict[str, Any]]]) -> list[Sample]:
    """One sample of each form that a kind has.

    `rows`: by table, in DynamoDB's own form, as tests/template/calls.py has them written.
    """
    full = {"JobsTable": [to_item(values_of_job(a_full_job())), to_item(_full_batch())]}
    found: dict[object, Sample] = {}
    for table, items in (*rows.items(), *full.items()):
        for item in items:
            kind = _kind(table, item)
            form = frozenset((name, next(iter(value))) for name, value in item.items())
            found.setdefault((kind, form), {"kind": kind, "table": table, "item": _encoded(item)})
    entry = {name: str(value) for name, value in _in_valkey().items()}
    return [
        *found.values(),
        {"kind": "entry in Valkey", "hash": entry},
        {"kind": "message of a job", "message": message_body("acme", OTHER.job_id)},
        {"kind": "message of a webhook", "message": webhook_body(a_delivery())},
    ]


def _in_valkey() -> dict[str, Any]:
    values = values_in_valkey(an_entry(OTHER))
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _full_batch() -> dict[str, Any]:
    hit = KeptHit("c1_key", "demo-chat", Freshness.FRESH, 1, NOW_MS, 2, 3, 4)
    refusal = Refusal("validation_failed", "No.", ({"field": "input", "message": "No."},), 5)
    items = (
        BatchItem("job", job_id="job_1", deduplicated=True),
        BatchItem("hit", hit=hit),
        BatchItem("refused", refusal=refusal),
    )
    batch = Batch("acme", "batch_2", NOW_MS, NOW_MS // 1000 + 60, items)
    return {"tenant": "batch#acme", "job_id": "batch_2", **values_of_batch(batch)}


def _kind(table: str, item: Mapping[str, Any]) -> str:
    match table:
        case "JobsTable":
            prefix = item["tenant"]["S"].partition("#")
            return "job" if prefix[0] == "refresh" or not prefix[1] else str(prefix[0])
        case "CacheTable":
            return "entry" if "stored_at_epoch_ms" in item else "tombstone"
        case "CoordinationTable":
            return str(item["coordination_key"]["S"].partition("#")[0])
        case "PartnersTable":
            return "API key"
    return "record of Powertools"


# ------------------------------------------------------------------------------------ reading


def seen(sample: Sample, client: DynamoDBClient, tables: Tables) -> Any:
    """What this code reads in a sample, as JSON would have it. The tables are empty before."""
    if "message" in sample:
        read: Callable[[str], object] = (
            read_body if sample["kind"] == "message of a job" else read_webhook
        )
        return plain(read(sample["message"]))
    if "hash" in sample:
        values = {name.encode(): value.encode() for name, value in sample["hash"].items()}
        return plain(entry_in_valkey(values))
    names = {
        "JobsTable": tables.names.jobs,
        "CacheTable": tables.names.cache,
        "CoordinationTable": tables.names.coordination,
        "PartnersTable": tables.partners,
    }
    if sample["table"] not in names:
        return None  # Powertools reads its own records
    item = _decoded(sample["item"])
    client.put_item(TableName=names[sample["table"]], Item=item)
    store = store_on(client, tables, FakeClock())
    return plain(_read(sample["kind"], from_item(item), store, client, tables))


def _read(
    kind: str, row: dict[str, Any], store: Store, client: DynamoDBClient, tables: Tables
) -> Any:
    coordination, table = tables.names.coordination, Table(client)
    owner = str(row.get("tenant", "")).split("#")
    key = str(row.get("coordination_key", "")).split("#")
    readers: dict[str, Callable[[], Any]] = {
        "API key": lambda: store.keys.find(row["key_hash"]),
        "audit": lambda: store.audit.list(since_ms=NOW_MS - 1, until_ms=NOW_MS + 1, limit=10),
        "backlog": store.backlogs.read,
        "batch": lambda: store.batches.get(owner[1], row["job_id"]),
        "claim": lambda: store.jobs.holder(a_job(99, job_key=key[1])),
        "day": lambda: _submitted(
            store, budget=DayBudget(**{name: row.get(name, 0) for name in ("jobs", "bypasses")})
        ),
        "delivery": lambda: store.delivery_log.list(
            owner[1], owner[2], now_ms=NOW_MS, limit=10, before=None
        ),
        "entry": lambda: store.cache.read(row["cache_key"]),
        "gate": lambda: (
            gate_of(row)
            if len(key) > 3
            else DynamoDBGates(table, coordination).look("#".join(key), now_ms=NOW_MS)
        ),
        "job": lambda: store.jobs.get(row["tenant"], row["job_id"]),
        "latency": lambda: DynamoDBLatencies(table, coordination).median_ms(
            "#".join(key), now_ms=NOW_MS, least=1
        ),
        "lease": lambda: _started(store, cache_key=key[1]),
        "owed": lambda: DynamoDBOwedAnswers(table, coordination).find(
            key[1], key[2], now_ms=NOW_MS
        ),
        "running": lambda: DynamoDBGates(table, coordination).enter(
            [Room(key[1], "all", 1)], "another", now_ms=NOW_MS, until_ms=NOW_MS + 1000
        ),
        "state": store.state.read,
        "tenant": lambda: _submitted(store, cap=row["in_flight"]),
        "tombstone": lambda: store.cache.look(row["cache_key"]),
        "usage": lambda: store.usage.read(owner[1], DAY, DAY),
        "webhook": lambda: store.endpoints.read(owner[1]),
    }
    return readers[kind]()


def _submitted(store: Store, *, cap: int = 100, budget: DayBudget | None = None) -> str:
    """What comes of one job more."""
    return type(store.jobs.submit(OTHER, shard_caps=(cap,), budget=budget)).__name__


def _started(store: Store, *, cache_key: str) -> Any:
    """What comes of a start under that lease, and the fence that it gets."""
    job = store.submit(a_job(99, cache_key=cache_key))
    outcome = start(store, job)
    fence = outcome.lease.fence if isinstance(outcome, Started) else None
    return {"outcome": type(outcome).__name__, "fence": fence}


# ------------------------------------------------------------------------------------ files


def samples_of(version: str) -> list[Sample]:
    """Those of a release, as they were written then."""
    found: list[Sample] = json.loads((FOLDER / f"{version}.json").read_text("utf-8"))
    return found


def versions() -> list[str]:
    """The releases that are kept."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def plain(value: Any) -> Any:
    """A value as JSON has it; a record of either kind by its members' names."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items() if one is not None}
    match value:
        case Enum():
            return value.value
        case bytes():
            return base64.b64encode(value).decode()
        case set() | frozenset():
            return sorted(value)
        case tuple() if hasattr(value, "_asdict"):
            return _members(value._asdict())
        case list() | tuple():
            return [plain(one) for one in value]
        case Mapping():
            return {str(name): plain(one) for name, one in value.items()}
    if is_dataclass(value):
        return _members({of.name: getattr(value, of.name) for of in fields(value)})
    return value


def _members(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a class; None is as if it weren't there."""
    return {name: plain(one) for name, one in values.items() if one is not None}


def _encoded(value: Any) -> Any:
    """An item, whose bytes become text."""
    match value:
        case {"B": bytes(data)}:
            return {"B": base64.b64encode(data).decode()}
        case dict():
            return {name: _encoded(one) for name, one in value.items()}
        case list():
            return [_encoded(one) for one in value]
    return value


def _decoded(value: Any) -> Any:
    match value:
        case {"B": str(text)}:
            return {"B": base64.b64decode(text)}
        case dict():
            return {name: _decoded(one) for name, one in value.items()}
        case list():
            return [_decoded(one) for one in value]
    return value


def _with_seen(samples: list[Sample]) -> Iterator[Sample]:
    import boto3  # noqa: PLC0415 - after the environment is set
    from moto import mock_aws  # noqa: PLC0415

    from tests.contract.harness import make_tables  # noqa: PLC0415

    for sample in samples:
        with mock_aws():
            client = boto3.client("dynamodb")
            yield {**sample, "seen": seen(sample, client, make_tables(client, "t"))}


def main() -> None:
    """Writes the samples of this version."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    from tests.template.calls import record  # noqa: PLC0415 - which makes clients

    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    samples = list(_with_seen(written(record("dynamodb").rows)))
    text = json.dumps(samples, indent=1, sort_keys=True)
    (FOLDER / f"{version}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Tables and bucket: what they keep, and for how long."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway.domain.catalogue import MAX_RETENTION_H, MAX_TTL_S
from sluiceway.domain.job import ROW_OUTLIVES_DEADLINE_S
from sluiceway.domain.request import MAX_DEADLINE_S

from tests.template.rendering import render

if TYPE_CHECKING:
    from tests.template.calls import Calls

TABLES = sorted(render().of_type("AWS::DynamoDB::Table"))
WRITTEN = ("JobsTable", "CacheTable", "CoordinationTable", "PartnersTable")
"""The tables that our adapters write; Powertools writes the other."""


def key_names(schema: list[dict[str, str]]) -> list[str]:
    return [key["AttributeName"] for key in schema]


def ttl_of(table: str) -> str:
    specification = render().properties(table)["TimeToLiveSpecification"]
    assert specification["Enabled"] is True
    name: str = specification["AttributeName"]
    return name


# ------------------------------------------------------------------------------------ safety


@pytest.mark.parametrize("table", TABLES)
def test_table_can_be_restored_to_any_second(table: str) -> None:
    of = render().properties(table)

    assert of["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True


@pytest.mark.parametrize("protect", ["true", "false"])
@pytest.mark.parametrize("table", TABLES)
def test_table_is_protected_when_the_parameter_says_so(table: str, protect: str) -> None:
    of = render(ProtectData=protect).properties(table)

    assert of["DeletionProtectionEnabled"] == protect


@pytest.mark.parametrize("table", TABLES)
def test_table_that_is_replaced_leaves_its_data(table: str) -> None:
    assert render().resources[table]["UpdateReplacePolicy"] == "Retain"


# ------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize("table", WRITTEN)
def test_items_have_the_tables_keys(table: str, calls: Calls) -> None:
    items = calls.items(table)

    keys = key_names(render().properties(table)["KeySchema"])

    assert items
    assert all(item[key].keys() == {"S"} for item in items for key in keys)


def test_idempotency_table_is_laid_out_as_powertools_expects() -> None:
    of = render().properties("IdempotencyTable")

    assert key_names(of["KeySchema"]) == ["id"]
    assert ttl_of("IdempotencyTable") == "expiration"


def test_jobs_table_streams_both_images() -> None:
    tables = render().of_type("AWS::DynamoDB::Table")

    streams = {
        name: of["StreamSpecification"]["StreamViewType"]
        for name, of in tables.items()
        if "StreamSpecification" in of
    }

    assert streams == {"JobsTable": "NEW_AND_OLD_IMAGES"}


def due_index() -> dict[str, Any]:
    (index,) = render().properties("JobsTable")["GlobalSecondaryIndexes"]
    found: dict[str, Any] = index
    return found


def test_open_jobs_are_in_the_due_index_and_ended_ones_not(calls: Calls) -> None:
    index_keys = set(key_names(due_index()["KeySchema"]))

    listed = {
        item["status"]["S"]: index_keys <= item.keys()
        for item in calls.items("JobsTable")
        if "status" in item
    }

    assert index_keys == {"due_shard", "due_at_epoch_ms"}
    assert listed["queued"] is True
    assert listed["completed"] is False


def test_due_index_projects_attributes_that_jobs_have(calls: Calls) -> None:
    projected = set(due_index()["Projection"]["NonKeyAttributes"])

    names = {name for item in calls.items("JobsTable") for name in item}

    assert projected <= names


def test_key_attributes_are_declared_with_the_types_that_are_written(calls: Calls) -> None:
    declared = {
        (attribute["AttributeName"], attribute["AttributeType"])
        for attribute in render().properties("JobsTable")["AttributeDefinitions"]
    }

    written = {
        (name, kind)
        for item in calls.items("JobsTable")
        for name, value in item.items()
        for kind in value
    }

    assert declared <= written


# ------------------------------------------------------------------------------------ time to live


@pytest.mark.parametrize("table", WRITTEN)
def test_time_to_live_is_a_number_of_seconds_under_the_declared_name(
    table: str, calls: Calls
) -> None:
    name = ttl_of(table)

    times = [item[name] for item in calls.items(table) if name in item]

    assert times
    assert all(time.keys() == {"N"} and len(time["N"]) == 10 for time in times)


@pytest.mark.parametrize("table", WRITTEN)
def test_times_say_their_unit_in_their_names(table: str, calls: Calls) -> None:  # case Z03
    # Those that the functions write are of this century; the epoch of a model or a tenant, which
    # is named after it, is no time.
    unit = {10: "_s", 13: "_ms"}
    digits = {
        name: len(value["N"])
        for item in calls.items(table)
        for name, value in item.items()
        if re.fullmatch(r"1[78]\d{8}(\d{3})?", value.get("N", "")) and ":" not in name
    }

    misnamed = {name for name, count in digits.items() if not name.endswith(unit[count])}

    assert digits
    assert misnamed == set()


def test_counters_never_expire(calls: Calls) -> None:
    name = ttl_of("CoordinationTable")

    expiring = {
        item["coordination_key"]["S"].partition("#")[0]
        for item in calls.items("CoordinationTable")
        if name in item
    }

    assert expiring == {"claim", "day", "latency", "lease", "owed"}


# ------------------------------------------------------------------------------------ payloads


def lifetime_s() -> int:
    (rule,) = render().properties("PayloadBucket")["LifecycleConfiguration"]["Rules"]
    assert rule["Status"] == "Enabled"
    return int(rule["ExpirationInDays"]) * 24 * 3600


def test_inputs_live_as_long_as_job_rows() -> None:  # case D02
    row_s = MAX_DEADLINE_S + ROW_OUTLIVES_DEADLINE_S

    assert lifetime_s() >= row_s


def test_results_live_as_long_as_anything_may_refer_to_them() -> None:
    fresh_and_stale_s = MAX_TTL_S + MAX_TTL_S

    assert lifetime_s() >= fresh_and_stale_s + MAX_RETENTION_H * 3600

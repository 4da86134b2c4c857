"""`sluiceway cost`: the bill of a workload, and what a stack's jobs paid."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from sluiceway.adapters.http_vendors import MAX_ANSWER_BYTES
from sluiceway.domain.request import MAX_BODY_BYTES
from sluiceway.domain.usage import usage_of
from sluiceway_cli import costs
from sluiceway_cli.main import cli

from tests.fakes.examples import a_job, a_partner_key, completed
from tests.unit.desk import Desk, stand_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.in_memory import FakeClock


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cost", *arguments])


def told(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_cost_needs_no_stack_and_is_a_million_submits() -> None:
    document = told()

    assert document["workload"]["requests"] == 1_000_000
    assert document["usd"] == document["usd_per_million"] > 0
    assert document["usd"] == pytest.approx(sum(one["usd"] for one in document["services"]))
    assert sum(one["share"] for one in document["services"]) == pytest.approx(1)
    for one in document["services"]:
        assert one["usd"] == pytest.approx(sum(item["usd"] for item in one["items"]))


def test_options_are_the_workload() -> None:
    document = told(
        *("--jobs", "2e6", "--hit-ratio", "0.5", "--prompt-kb", "9", "--answer-kb", "3"),
        *("--vendor-s", "4", "--polls", "0", "--webhooks", "1", "--cache", "valkey"),
        *("--entry-h", "1", "--vendor-price", "0.01", "--tenants", "7", "--models", "1"),
    )

    given = document["workload"]
    assert (given["requests"], given["hit_ratio"], given["vendor_s"]) == (2e6, 0.5, 4)
    assert (given["prompt_kb"], given["answer_kb"], given["polls"]) == (9, 3, 0)
    assert (given["webhook_ratio"], given["cache"], given["entry_h"]) == (1, "valkey", 1)
    assert (given["tenants"], given["models"]) == (7, 1)
    assert document["vendor"] == {"usd": 10_000, "saved_usd": 10_000}
    assert "Valkey" in {one["service"] for one in document["services"]}
    assert "Valkey" in {one["service"] for one in document["idle"]["services"]}


def test_job_costs_more_than_a_hit_and_no_cache_has_none() -> None:
    ones = told()["usd_of_one"]

    assert ones["job"] > 10 * ones["hit"] > 0
    assert set(told("--cache", "none")["usd_of_one"]) == {"job"}
    assert told("--cache", "none")["break_even"] == []


def test_break_even_is_told_with_and_without_a_new_gateway() -> None:
    far, near = told("--entry-h", "1")["break_even"]

    assert (far["new_nat_gateway"], near["new_nat_gateway"]) == (True, False)
    assert far["hits_from"] > near["hits_from"] > 0
    assert far["hits_from"] == pytest.approx(0.3 * far["submits_from"])
    assert told("--entry-h", "9999")["break_even"][0]["hits_from"] is None


def test_break_even_of_requests_without_a_hit_is_told_in_submits() -> None:
    one = told("--entry-h", "1", "--hit-ratio", "0")["break_even"][1]
    output = run("--entry-h", "1", "--hit-ratio", "0").output

    assert one["submits_from"] > 1_000
    assert f"from {one['submits_from']:,.0f} submits a month on, 0 of them hits" in output


def test_people_read_services_totals_and_what_is_left_out() -> None:
    output = run("--vendor-price", "0.5").output

    for part in ("DynamoDB", "time of run_job", "idle installation", "hits save 150,000.00"):
        assert part in output
    assert all(one in output for one in costs.LEFT_OUT)
    assert "us-east-1" in output


def test_another_price_moves_the_bill() -> None:
    assert told("--price", "write=6.25")["usd"] > told()["usd"]


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--price", "write"), ("--price", "wirte=1"), ("--price", "write=nan")),
        *(("--hit-ratio", "1.5"), ("--jobs", "0"), ("--cache", "redis"), ("--days", "0")),
        *(("--vendor-s", "nan"), ("--jobs", "inf"), ("--jobs", "1e13"), ("--hit-ratio", "nan")),
        *(("--prompt-kb", "1025"), ("--answer-kb", "1e9"), ("--vendor-s", "901")),
    ],
    ids=" ".join,
)
def test_what_can_not_be_is_refused(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.output


def test_largest_sizes_are_those_that_the_service_takes() -> None:
    assert costs.MOST_PROMPT_KB * 1024 == MAX_BODY_BYTES
    assert costs.MOST_ANSWER_KB * 1024 == MAX_ANSWER_BYTES


# ------------------------------------------------------------------------------------ paid


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Desk:
    made = Desk("http://127.0.0.1:9/v1", clock=clock, endpoint_url="http://127.0.0.1:9")
    stand_at(monkeypatch, made, "cost_commands")
    for number, tenant in enumerate(("acme", "globex"), start=1):
        made.partner_keys().add(a_partner_key(number, tenant=tenant))
    return made


def ended(desk: Desk, number: int, **changes: Any) -> None:
    row = usage_of(job := completed(a_job(number, **changes)))
    desk.world.usage[job.tenant, row.day, f"{row.model}#{number}"] = row


def test_paid_is_told_by_tenant_and_in_all(desk: Desk) -> None:
    ended(desk, 1)
    ended(desk, 2)
    ended(desk, 3, tenant="globex")

    document = told("--days", "7")

    by_tenant = {one["tenant"]: one for one in document["tenants"]}
    assert (document["from"], document["to"]) == ("2025-12-26", "2026-01-01")
    assert by_tenant["acme"]["completed"] == 2
    assert by_tenant["acme"]["cost"] == pytest.approx(0.00066)
    assert by_tenant["globex"]["completed"] == 1
    assert document["total"]["cost"] == pytest.approx(0.00099)


def test_paid_of_one_tenant_is_of_thirty_days(desk: Desk) -> None:
    ended(desk, 1)
    ended(desk, 2, tenant="globex")

    document = told("--tenant", "acme")

    assert [one["tenant"] for one in document["tenants"]] == ["acme"]
    assert document["from"] == "2025-12-03"
    assert document["total"]["completed"] == 1


def test_paid_is_a_table_for_people(desk: Desk) -> None:
    ended(desk, 1)

    lines = run("--days", "1").output.splitlines()

    assert lines[1].split()[0] == "TENANT"
    assert lines[2].split()[:2] == ["acme", "1"]
    assert lines[4].split()[:2] == ["all", "1"]


@pytest.mark.parametrize("of", [("--days", "7"), ("--tenant", "acme")], ids=" ".join)
@pytest.mark.parametrize(
    "arguments", [("--jobs", "5"), ("--hit-ratio", "0.3"), ("--price", "read=1")], ids=" ".join
)
def test_paid_takes_no_option_of_a_workload(
    desk: Desk, of: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    ended(desk, 1)

    result = run(*of, *arguments)

    assert result.exit_code == 2
    assert f"{arguments[0]} is of a workload" in result.output


def test_paid_of_a_tenant_that_nobody_knows_is_an_error(desk: Desk) -> None:
    ended(desk, 1, tenant="gone")

    known, unknown = (run("--tenant", name, "--json") for name in ("gone", "acmee"))

    assert json.loads(known.output)["total"]["completed"] == 1
    assert unknown.exit_code == 1
    assert "no key is of tenant acmee" in json.loads(unknown.output)["error"]["detail"]


def test_paid_needs_a_stack() -> None:
    result = run("--days", "1")

    assert result.exit_code == 1
    assert "no stack" in result.output

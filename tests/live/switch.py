"""Whether the live tests may start, and what they say before: nobody deploys by accident."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sluiceway_cli import costs

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "SLUICEWAY_LIVE_ACCOUNT"
"""Has to name the account, so that wrong credentials make nothing."""

SKIPPED = "needs an account of AWS, and costs money: make test-live"

NOT_ASKED = 4
"""The exit code of a run that was refused."""

MINUTES = 20.0
"""That a run takes, at most, with its teardown."""

JOBS, REQUESTS, VENDOR_S = 230.0, 500.0, 4.0
"""Of a run, at most: what the tests submit and ask for, and how long their vendor takes."""

VENDOR_GB = 0.25

METRIC_READS, METRIC_READ_USD = 400, 0.01 / 1000
"""Of GetMetricData, which bills each metric that it is asked for."""

UNRESERVED_LEAST = 100
"""Of its concurrency an account has to leave so much unreserved."""

WORKERS = 10


def refusal(wanted: str | None, account: str) -> str | None:
    """Why nothing is made with these credentials; None: it may be."""
    if not wanted:
        return (
            f"these credentials are of the account {account}; "
            f"if that is the one to test in, set {VARIABLE}={account}"
        )
    if wanted != account:
        return f"{VARIABLE} is {wanted}, and these credentials are of the account {account}"
    return None


SERVICES = ("sts", "cloudformation", "dynamodb", "lambda", "s3", "sqs")
"""Whose endpoints are looked at: one for all is found at the first of them."""

AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


def elsewhere(endpoint_urls: Mapping[str, str]) -> str | None:
    """Why a run on these endpoints, by service, wouldn't be one on AWS; None: it is."""
    for service, url in endpoint_urls.items():
        if not (urlsplit(url).hostname or "").endswith(AWS_DOMAINS):
            return (
                f"{service} is at {url}, which isn't AWS: unset AWS_ENDPOINT_URL and its like, "
                "or rehearse by --live-endpoint"
            )
    return None


def workers(unreserved: int) -> str:
    """The parameter WorkerConcurrency for an account with so much unreserved concurrency."""
    return str(WORKERS) if unreserved - WORKERS >= UNRESERVED_LEAST else "off"


def cost(minutes: float = MINUTES) -> dict[str, float]:
    """USD of a run that takes so long, by what they are for; free tiers aside."""
    month = costs.idle_cost()
    hours = minutes / 60
    stack = month.usd * hours / costs.MONTH_H
    # What is billed by the hour is billed for whole ones, and a run may touch two.
    metrics = len(costs.METRICS) * 6 * costs.LIST.one("metric") * 2 / costs.MONTH_H
    workload = costs.Workload(
        requests=JOBS, hit_ratio=0.0, vendor_s=VENDOR_S, polls=2.0, webhook_ratio=0.0
    )
    events = {path: many for path, many in costs.events_of(workload).items() if path != "authorize"}
    events["authorize"] = 10.0
    jobs = costs.cost_of_events(events, workload, costs.counted())
    vendor = JOBS * (
        costs.LIST.one("invocation") + VENDOR_S * VENDOR_GB * costs.LIST.one("gb_second")
    )
    sweeps = minutes * 60 * 0.25 * costs.LIST.one("gb_second")  # it polls while jobs are open
    return {
        "the stack, for its minutes": stack,
        "metrics of its jobs": metrics,
        "jobs, requests and events": jobs.usd,
        "the sweeper, at work": sweeps,
        "the vendor": vendor,
        "reading metrics": METRIC_READS * METRIC_READ_USD,
    }


def forgotten_usd_per_day() -> float:
    """What the stack costs a day when nobody deletes it."""
    return costs.idle_cost().usd * 24 / costs.MONTH_H


def announcement(stack: str, caller: Mapping[str, str], region: str) -> str:
    """What is said before anything is made."""
    usd = sum(cost().values())
    return (
        f"account  {caller['Account']}, as {caller['Arn']}\n"
        f"region   {region}\n"
        f"makes    the stacks {stack} and {stack}-outside, and a bucket for their code\n"
        f"takes    about {MINUTES:g} minutes, and about {usd:.2f} USD\n"
        f"deletes  all of it at the end, after a failure and Ctrl-C too; should that fail:\n"
        f"         .venv/bin/python -m tests.live.teardown {stack}\n"
        f"         until then it costs about {forgotten_usd_per_day():.2f} USD a day"
    )

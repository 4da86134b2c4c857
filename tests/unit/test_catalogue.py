"""The catalogue: its defaults, its faults by name, and times that must fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluiceway.bootstrap import packaged_catalogue
from sluiceway.domain.catalogue import (
    MOST_MONEY,
    Cache,
    Catalogue,
    Model,
    Price,
    Service,
    Tenant,
    Timeout,
    Vendor,
    check_times,
    parse,
)
from sluiceway.domain.errors import ConfigurationError, ModelNotFoundError

MINIMAL = """
[vendors.simulator]
[models.demo-chat]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
"""

# Every member, with the value that it has by default or in the demo.
SAMPLE = """
[service]
hold_max_s = 15
retry_after_max_s = 3600
result_retention_h = 72
degraded_after_s = 900            # oldest due job; off again below degraded_until_s
degraded_until_s = 300
queue_full = 100000

[vendors.simulator]
protocol = "openai"                # openai | anthropic | bedrock
base_url = "http://127.0.0.1:8089/v1"
api_key_secret = "sluiceway/vendors/simulator"
connect_timeout_s = 2.0
max_concurrency = 0                # 0: no limit
on_unknown_outcome = "retry"       # retry | fail

[models.demo-chat]
vendor = "simulator"
vendor_model = "sim-chat-1"
version = "1"
requests_per_minute = 600          # 0: no limit
tokens_per_minute = 0
burst = 10
max_concurrency = 0
timeout_s = { min = 5.0, max = 60.0 }   # adaptive between them: 2 x median of recent latencies
max_attempts = 4
weight = "light"                   # heavy models default to the batch lane
key_window_s = 0                   # > 0: equal requests in different windows are different work
cache = { scope = "tenant", soft_ttl_s = 3600, hard_ttl_s = 86400, stale_if_error_s = 86400, jitter = 0.1, only_deterministic = false }
price = { input_per_million = 3.0, output_per_million = 15.0 }

[tenants.default]
in_flight = 1000
requests_per_minute = 0
jobs_per_day = 0
cost_per_day = 0.0
share = 1
allow_shared_cache = true
"""  # noqa: E501 - TOML has no line breaks here


NEWER = SAMPLE.replace("[tenants.default]", "[tenants.default]\nmood = 1").replace(
    "burst = 10", "burst = 10\nmagic = true\n"
)


def test_members_of_newer_code_are_left_out_and_told_to_who_works_with_it() -> None:
    told: list[str] = []

    catalogue = parse(f"epoch = 3\n{NEWER}", on_unknown=told.extend)

    assert catalogue == parse(SAMPLE)
    assert sorted(told) == ["epoch", "models.demo-chat.magic", "tenants.default.mood"]


def test_other_faults_beside_members_of_newer_code_are_refused() -> None:
    told: list[str] = []

    with pytest.raises(ConfigurationError, match=r"models\.demo-chat\.weight"):
        parse(NEWER.replace('"light"', '"feather"'), on_unknown=told.extend)

    assert told == []


def faults(text: str) -> list[str]:
    """The places that a wrong catalogue's error names."""
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    return [fault.partition(":")[0] for fault in caught.value.errors]


# ------------------------------------------------------------------ good ones


def test_catalogue_with_every_member_is_read_as_it_says() -> None:
    catalogue = parse(SAMPLE)

    assert catalogue == Catalogue(
        service=Service(
            hold_max_s=15,
            retry_after_max_s=3600,
            result_retention_h=72,
            degraded_after_s=900,
            degraded_until_s=300,
            queue_full=100_000,
        ),
        vendors={
            "simulator": Vendor(
                protocol="openai",
                base_url="http://127.0.0.1:8089/v1",
                api_key_secret="sluiceway/vendors/simulator",
                connect_timeout_s=2.0,
                max_concurrency=0,
                on_unknown_outcome="retry",
            )
        },
        models={
            "demo-chat": Model(
                vendor="simulator",
                vendor_model="sim-chat-1",
                version="1",
                requests_per_minute=600,
                timeout_s=Timeout(min=5.0, max=60.0),
                price=Price(input_per_million=3.0, output_per_million=15.0),
            )
        },
        tenants={"default": Tenant()},
    )


def test_base_url_may_be_in_capitals() -> None:
    text = MINIMAL.replace(
        "[vendors.simulator]", '[vendors.simulator]\nbase_url = "HTTPS://V.Example/v1"'
    )

    assert parse(text).vendors["simulator"].base_url == "HTTPS://V.Example/v1"


def test_catalogue_needs_no_more_than_vendor_vendor_model_and_version() -> None:
    model = parse(MINIMAL).model("demo-chat")

    assert model.model_dump() == {
        "vendor": "simulator",
        "vendor_model": "sim-chat-1",
        "version": "1",
        "requests_per_minute": 0,
        "tokens_per_minute": 0,
        "burst": 10,
        "max_concurrency": 0,
        "timeout_s": {"min": 5.0, "max": 60.0},
        "max_attempts": 4,
        "weight": "light",
        "key_window_s": 0,
        "cache": {
            "scope": "tenant",
            "soft_ttl_s": 3600,
            "hard_ttl_s": 86_400,
            "stale_if_error_s": 86_400,
            "jitter": 0.1,
            "only_deterministic": False,
            "early_refresh": 0.0,
        },
        "price": {"input_per_million": 0.0, "output_per_million": 0.0},
    }


def test_catalogue_may_be_empty() -> None:
    assert parse("") == Catalogue()


def test_packaged_catalogue_is_empty() -> None:
    catalogue = packaged_catalogue()

    assert (catalogue.vendors, catalogue.models, catalogue.tenants) == ({}, {}, {})


def test_catalogue_finds_a_models_vendor() -> None:
    catalogue = parse(SAMPLE)

    assert catalogue.vendor_of(catalogue.model("demo-chat")).protocol == "openai"


def test_catalogue_names_no_other_model() -> None:
    with pytest.raises(ModelNotFoundError):
        parse(SAMPLE).model("demo-Chat")


# ------------------------------------------------------------------ tenants


def test_tenant_takes_from_the_default_what_it_leaves_out() -> None:
    catalogue = parse(
        """
        [tenants.default]
        in_flight = 7
        share = 3
        [tenants.acme]
        share = 5
        """
    )

    assert catalogue.tenant("acme") == Tenant(in_flight=7, share=5)


def test_tenant_without_an_entry_is_the_default() -> None:
    catalogue = parse("[tenants.default]\nin_flight = 7\n[tenants.acme]\nin_flight = 9")

    assert catalogue.tenant("globex") == Tenant(in_flight=7)


def test_tenant_without_any_entry_has_the_built_in_limits() -> None:
    assert parse("").tenant("acme") == Tenant(
        in_flight=1000,
        requests_per_minute=0,
        jobs_per_day=0,
        cost_per_day=0.0,
        share=1,
        allow_shared_cache=True,
    )


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("fragment", "place"),
    [
        ("[service]\nhold_max_s = -1", "service.hold_max_s"),
        ("[service]\nretry_after_max_s = 0", "service.retry_after_max_s"),
        ("[service]\nresult_retention_h = 0", "service.result_retention_h"),
        ("[service]\nqueue_full = -1", "service.queue_full"),
        ("[service]\nqueue_fill = 1", "service.queue_fill"),
        ('[vendors.v]\nprotocol = "grpc"', "vendors.v.protocol"),
        ('[vendors.v]\nbase_url = "ftp://x"', "vendors.v.base_url"),
        ("[vendors.v]\nconnect_timeout_s = 0", "vendors.v.connect_timeout_s"),
        ("[vendors.v]\nmax_concurrency = -1", "vendors.v.max_concurrency"),
        ('[vendors.v]\non_unknown_outcome = "hope"', "vendors.v.on_unknown_outcome"),
        ('[vendors.v]\napi_key = "sk-1"', "vendors.v.api_key"),
        ("[vendors.Capital]", "vendors.Capital.[key]"),
        ("[tenants.default]\nin_flight = 0", "tenants.default.in_flight"),
        ("[tenants.default]\nshare = 0", "tenants.default.share"),
        ("[tenants.default]\ncost_per_day = -0.1", "tenants.default.cost_per_day"),
        ("[tenants.acme]\nin_fligth = 1", "tenants.acme.in_fligth"),
        ("[tenants]\ndefault = 5", "tenants.default"),
        ("tenants = 5", "tenants"),
        ("[modles.x]", "modles"),
    ],
)
def test_catalogue_names_what_is_wrong(fragment: str, place: str) -> None:
    assert faults(fragment) == [place]


@pytest.mark.parametrize(
    ("member", "place"),
    [
        ('vendor = "nobody"', "vendor"),
        ('vendor_model = ""', "vendor_model"),
        ('version = ""', "version"),
        ("version = 1", "version"),
        ("requests_per_minute = -1", "requests_per_minute"),
        ("tokens_per_minute = 0.5", "tokens_per_minute"),
        ("burst = 0", "burst"),
        ("timeout_s = { min = 0.0 }", "timeout_s.min"),
        ("timeout_s = { min = 9.0, max = 8.0 }", "timeout_s"),
        ("timeout_s = 5", "timeout_s"),
        ("max_attempts = 0", "max_attempts"),
        ("max_attempts = 21", "max_attempts"),
        ('weight = "feather"', "weight"),
        ("key_window_s = -1", "key_window_s"),
        ('cache = { scope = "world" }', "cache.scope"),
        ("cache = { hard_ttl_s = 0 }", "cache.hard_ttl_s"),
        ("cache = { soft_ttl_s = 10, hard_ttl_s = 9 }", "cache"),
        ("cache = { jitter = 1.0 }", "cache.jitter"),
        ("cache = { stale_if_error_s = -1 }", "cache.stale_if_error_s"),
        ("price = { input_per_million = -1.0 }", "price.input_per_million"),
        ("prize = 1", "prize"),
    ],
)
def test_catalogue_names_what_is_wrong_in_a_model(member: str, place: str) -> None:
    name = member.partition(" ")[0]
    kept = [line for line in MINIMAL.strip().splitlines() if not line.startswith(f"{name} ")]

    assert faults("\n".join([*kept, member])) == [f"models.demo-chat.{place}"]


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "template",
    [
        "[service]\nretry_after_max_s = {}",
        "[service]\nresult_retention_h = {}",
        "[service]\nhold_max_s = {}",
        "[vendors.v]\nconnect_timeout_s = {}",
        "[tenants.default]\ncost_per_day = {}",
        f"{MINIMAL}\ntimeout_s = {{{{ max = {{}} }}}}",
        f"{MINIMAL}\ncache = {{{{ hard_ttl_s = {{}} }}}}",
        f"{MINIMAL}\ncache = {{{{ stale_if_error_s = {{}} }}}}",
        f"{MINIMAL}\nprice = {{{{ output_per_million = {{}} }}}}",
    ],
    ids=[
        "retry_after_max_s",
        "result_retention_h",
        "hold_max_s",
        "connect_timeout_s",
        "cost_per_day",
        "timeout_s.max",
        "hard_ttl_s",
        "stale_if_error_s",
        "price",
    ],
)
def test_catalogue_refuses_numbers_without_an_end(template: str, number: str) -> None:
    # A cost or an expiry that can't be computed would lose a paid result.
    with pytest.raises(ConfigurationError):
        parse(template.format(number))


@pytest.mark.parametrize(
    "template",
    [
        "[service]\nretry_after_max_s = {}",
        "[service]\nhold_max_s = {}",
        "[service]\nqueue_full = {}",
        "[vendors.v]\nmax_concurrency = {}",
        "[tenants.default]\nin_flight = {}",
        "[tenants.default]\nrequests_per_minute = {}",
        "[tenants.default]\nshare = {}",
        "[tenants.default]\ncost_per_day = {}",
        f"{MINIMAL}\nburst = {{}}",
        f"{MINIMAL}\nkey_window_s = {{}}",
        f"{MINIMAL}\nprice = {{{{ input_per_million = {{}} }}}}",
    ],
)
def test_catalogue_refuses_numbers_beyond_reason(template: str) -> None:
    # DynamoDB keeps 38 digits: a larger limit fails each submit, a larger cost a finish.
    with pytest.raises(ConfigurationError):
        parse(template.format(10**15))


def test_most_that_a_job_may_cost_fits_into_a_row() -> None:
    price = Price(input_per_million=MOST_MONEY, output_per_million=MOST_MONEY)

    assert len(str(price.cost_nanos(10**9, 10**9))) < 38


def test_catalogue_names_every_fault_at_once() -> None:
    found = faults("[service]\nhold_max_s = -1\n[vendors.v]\nprotocol = 'grpc'\nextra = 1")

    assert sorted(found) == ["service.hold_max_s", "vendors.v.extra", "vendors.v.protocol"]


@pytest.mark.parametrize(
    "text",
    [
        *("[", "a = ", "a = 1\na = 2", "[service]\n[service]"),
        pytest.param(f"a = {'[' * 100_000}{']' * 100_000}", id="deep"),
        pytest.param(f"a = {'9' * 5_000}", id="long"),
    ],
)
def test_catalogue_refuses_what_is_no_toml(text: str) -> None:
    assert faults(text) == ["not TOML"]


@pytest.mark.parametrize("member", ["vendor", "vendor_model", "version"])
def test_catalogue_needs_the_members_without_a_default(member: str) -> None:
    kept = [line for line in MINIMAL.strip().splitlines() if not line.startswith(f"{member} ")]

    assert faults("\n".join(kept)) == [f"models.demo-chat.{member}"]


# ------------------------------------------------------------------ times


@pytest.mark.parametrize(("max_s", "fits"), [(5.0, True), (70.0, True), (70.1, False)])
def test_check_times_wants_hold_call_and_finish_within_the_lease(
    max_s: float, *, fits: bool
) -> None:
    catalogue = parse(f"{MINIMAL}timeout_s = {{ max = {max_s} }}")

    assert (check_times(catalogue, lease_s=100) == ()) is fits


def test_check_times_counts_the_hold() -> None:
    catalogue = parse(f"[service]\nhold_max_s = 16\n{MINIMAL}timeout_s = {{ max = 70.0 }}")

    (fault,) = check_times(catalogue, lease_s=100)

    assert fault.startswith("models.demo-chat.timeout_s.max: 70 s don't fit")
    assert fault.endswith("69 s")


def test_check_times_passes_the_defaults() -> None:
    assert check_times(parse(MINIMAL), lease_s=100) == ()


# ------------------------------------------------------------------ prices


def test_price_is_exact_in_billionths() -> None:
    price = Price(input_per_million=3.0, output_per_million=15.0)

    assert price.cost_nanos(10, 20) == 330_000
    assert price.cost_nanos(1_000_000, 1_000_000) == 18_000_000_000


def test_price_of_nothing_is_nothing() -> None:
    assert Price().cost_nanos(10**6, 10**6) == 0


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_price_adds_up(tokens_in: int, tokens_out: int) -> None:
    price = Price(input_per_million=0.15, output_per_million=0.6)

    apart = price.cost_nanos(tokens_in, 0) + price.cost_nanos(0, tokens_out)

    assert abs(price.cost_nanos(tokens_in, tokens_out) - apart) <= 1


def test_cache_times_are_in_order_by_default() -> None:
    assert Cache().soft_ttl_s <= Cache().hard_ttl_s

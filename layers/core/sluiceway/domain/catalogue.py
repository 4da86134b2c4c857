"""The catalogue: vendors, models, tenants and their limits.

Durations are seconds, sizes bytes, prices units of the operator's currency per million tokens.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sluiceway.domain.errors import ConfigurationError, ModelNotFoundError
from sluiceway.domain.ids import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$")]

MOST = 1_000_000_000
"""Of a limit, and of a time in seconds."""

MOST_MONEY = 1_000_000_000_000
"""What is counted and added up stays far below the 38 digits that DynamoDB keeps: a number beyond
them would fail each submit, or lose a paid result at its finish."""

Seconds = Annotated[float, Field(gt=0, le=MOST)]
Limit = Annotated[int, Field(ge=0, le=MOST)]
"""0 means: no limit."""
AtLeastOne = Annotated[int, Field(ge=1, le=MOST)]
Money = Annotated[float, Field(ge=0, le=MOST_MONEY)]
"""In the operator's currency."""

MAX_TTL_S = 14 * 24 * 3600
MAX_RETENTION_H = 14 * 24
"""Big results live as long as the payload bucket's lifecycle lets them (template.yaml): an entry's
hard TTL, its time as a stale answer, and the retention of a job that it completed last."""


VENDOR_SECRETS = "sluiceway/vendors/"
"""How the names of the vendors' secrets begin: workers may read no others (template.yaml)."""


MODEL_GONE = "The model is no longer in the catalogue."
"""Why a job fails whose model was taken out while it was open."""


class _Strict(BaseModel):
    # Built when the first of them is read: the outermost holds all that it needs of the inner ones.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Service(_Strict):
    """What holds for the whole installation."""

    hold_max_s: Annotated[float, Field(ge=0, le=MOST)] = 15
    retry_after_max_s: Seconds = 3600
    result_retention_h: Annotated[float, Field(gt=0, le=MAX_RETENTION_H)] = 72
    degraded_after_s: Seconds = 900
    degraded_until_s: Seconds = 300
    queue_full: Limit = 100_000


class Vendor(_Strict):
    """Where and how a vendor is called."""

    protocol: Literal["openai", "anthropic", "bedrock"] = "openai"
    base_url: Annotated[str, Field(pattern=r"^(?i:https?)://")] = "https://api.openai.com/v1"
    api_key_secret: str = ""
    """Name of the secret that holds the key; under `sluiceway/vendors/`, or none."""
    connect_timeout_s: Seconds = 2.0
    max_concurrency: Limit = 0
    on_unknown_outcome: Literal["retry", "fail"] = "retry"


class Timeout(_Strict):
    """Bounds of a call's total time."""

    min: Seconds = 5.0
    max: Seconds = 60.0

    @model_validator(mode="after")
    def _ordered(self) -> Timeout:
        if self.min > self.max:
            raise ValueError("min is above max")
        return self


class Cache(_Strict):
    """How long a model's answers are served."""

    scope: Literal["none", "tenant", "shared"] = "tenant"
    soft_ttl_s: Seconds = 3600
    hard_ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] = 86_400
    stale_if_error_s: Annotated[float, Field(ge=0, le=MAX_TTL_S)] = 86_400
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.1
    only_deterministic: bool = False
    """Only answers to requests with `temperature` 0 are kept and served."""
    early_refresh: Annotated[float, Field(ge=0, le=10)] = 0.0
    """0: none before the soft expiry; 1: as XFetch has it."""

    @model_validator(mode="after")
    def _ordered(self) -> Cache:
        if self.soft_ttl_s > self.hard_ttl_s:
            raise ValueError("soft_ttl_s is above hard_ttl_s")
        return self


class Price(_Strict):
    """Per million tokens."""

    input_per_million: Money = 0.0
    output_per_million: Money = 0.0

    def cost_nanos(self, input_tokens: int, output_tokens: int) -> int:
        """Cost in 1e-9 of the currency unit: a price per million times tokens is in millionths."""
        millionths = self.input_per_million * input_tokens + self.output_per_million * output_tokens
        return round(millionths * 1000)


class Model(_Strict):
    """One model that partners may name."""

    vendor: Name
    vendor_model: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(min_length=1)]
    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    burst: AtLeastOne = 10
    max_concurrency: Limit = 0
    timeout_s: Timeout = Timeout()
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 4
    weight: Literal["light", "heavy"] = "light"
    key_window_s: Annotated[int, Field(ge=0, le=MOST)] = 0
    cache: Cache = Cache()
    price: Price = Price()


class Tenant(_Strict):
    """What a partner may use."""

    in_flight: AtLeastOne = 1000
    requests_per_minute: Limit = 0
    jobs_per_day: Limit = 0
    cost_per_day: Money = 0.0
    bypasses_per_day: Limit = 1000
    """New jobs although a cached answer may be there: the modes `bypass` and `refresh`, and
    `max_age_s` that refuses one."""
    share: AtLeastOne = 1
    allow_shared_cache: bool = True

    @property
    def cost_nanos_per_day(self) -> int:
        """`cost_per_day` in 1e-9 of the currency unit, as jobs have it."""
        return round(self.cost_per_day * 1e9)


_ANY_TENANT = Tenant()


class Catalogue(_Strict):
    """All of it."""

    service: Service = Service()
    vendors: dict[Name, Vendor] = Field(default_factory=dict)
    models: dict[Name, Model] = Field(default_factory=dict)
    tenants: dict[Name, Tenant] = Field(default_factory=dict)

    def model(self, name: str) -> Model:
        """The model of this name. Raises ModelNotFoundError."""
        try:
            return self.models[name]
        except KeyError:
            raise ModelNotFoundError(
                "There is no model of this name; GET /models lists them."
            ) from None

    def vendor_of(self, model: Model) -> Vendor:
        """The model's vendor, which `parse` has made sure of."""
        return self.vendors[model.vendor]

    @property
    def vendor_by_model(self) -> dict[str, str]:
        """The names of the vendors, by the names of their models."""
        return {name: model.vendor for name, model in self.models.items()}

    def tenant(self, name: str) -> Tenant:
        """The tenant's own limits, else those of `tenants.default`."""
        return self.tenants.get(name) or self.tenants.get("default") or _ANY_TENANT


def scope_of(model: Model, options: Mapping[str, object], *, allow_shared: bool) -> str:
    """The cache scope of a request with these options.

    `shared` only when model and partner both allow it; `none` for an answer left to chance.
    """
    if model.cache.only_deterministic and options.get("temperature") != 0:
        return "none"
    if model.cache.scope == "shared" and not allow_shared:
        return "tenant"
    return model.cache.scope


def parse(text: str, *, on_unknown: Callable[[Sequence[str]], None] | None = None) -> Catalogue:
    """The catalogue in this TOML.

    Members that a named tenant leaves out come from `tenants.default`. Those that there aren't are
    faults; with `on_unknown` they are left out and told to it: whoever works with a catalogue that
    newer code let through does what it can.
    Raises ConfigurationError with every fault found.
    """
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError((f"not TOML: {error}",)) from error
    except (RecursionError, ValueError) as error:  # of Python, about what the grammar allows
        raise ConfigurationError(("not TOML: too deep, or a number of too many digits",)) from error
    tenants = raw.get("tenants")
    if isinstance(tenants, dict) and isinstance(tenants.get("default"), dict):
        raw["tenants"] = {
            name: tenants["default"] | own if isinstance(own, dict) else own
            for name, own in tenants.items()
        }
    try:
        catalogue = Catalogue.model_validate(raw)
    except ValidationError as error:
        found = [(".".join(map(str, e["loc"])), e["type"], e["msg"]) for e in error.errors()]
        unknown = [where for where, kind, _ in found if kind == "extra_forbidden"]
        if on_unknown is None or len(unknown) < len(found):
            raise ConfigurationError(
                tuple(f"{where}: {message}" for where, _, message in found)
            ) from error
        on_unknown(unknown)
        catalogue = Catalogue.model_validate(raw, extra="ignore")
    faults = tuple(
        f"models.{name}.vendor: there is no vendor {model.vendor!r}"
        for name, model in catalogue.models.items()
        if model.vendor not in catalogue.vendors
    )
    if faults:
        raise ConfigurationError(faults)
    return catalogue


def check_times(catalogue: Catalogue, *, lease_s: float) -> tuple[str, ...]:
    """Each model whose hold, call and finish don't fit in a lease of `lease_s`."""
    room_s = lease_s - catalogue.service.hold_max_s - FINISH_MARGIN_S
    return tuple(
        f"models.{name}.timeout_s.max: {model.timeout_s.max:g} s don't fit; with this "
        f"RunJobTimeout and hold_max_s a call may take {room_s:g} s"
        for name, model in catalogue.models.items()
        if model.timeout_s.max > room_s
    )


FINISH_MARGIN_S = 15.0
"""Of a lease: its skew of 6 s at the end, and the time to write the result."""

"""What the documents say of the live tests is what these do."""

from __future__ import annotations

from samtranslator.yaml_helper import yaml_parse

from tests.docs.test_docs import LOCAL, ROOT, rows_of, section, text_of
from tests.live import switch, teardown


def test_cost_of_a_run_is_what_is_computed() -> None:
    documented = dict(rows_of(section(LOCAL, "Cost of the live tests")))

    computed = switch.cost()

    assert documented == {what: f"{usd:.3f}" for what, usd in computed.items()} | {
        "together": f"{sum(computed.values()):.2f}"
    }
    assert f"about {switch.forgotten_usd_per_day():.2f} USD a day" in text_of(LOCAL)
    assert f"about {sum(computed.values()):.2f} USD" in (ROOT / "Makefile").read_text("utf-8")


def test_names_of_the_switch_are_documented() -> None:
    for name in (switch.VARIABLE, teardown.PREFIX, f"`{teardown.TAG}`", "--live-endpoint"):
        assert name in text_of(LOCAL), name


def test_what_the_templates_make_is_what_the_rights_are_for() -> None:
    services = {
        resource["Type"].split("::")[1]
        for path in ("template.yaml", "tests/live/outside.yaml")
        for resource in yaml_parse((ROOT / path).read_text("utf-8"))["Resources"].values()
        if resource.get("Condition") not in {"UseValkey", "UseWebAcl", "HasOpsTopic"}
    }
    names = {"Serverless": "Lambda", "ApiGateway": "API Gateway", "Events": "EventBridge"}
    names |= {"SecretsManager": "Secrets Manager", "Logs": "CloudWatch Logs"}
    documented = {
        name
        for row in rows_of(section(LOCAL, "Rights for the live tests"))
        for name in row[0].split(", ")
    }

    assert {names.get(service, service) for service in services} <= documented

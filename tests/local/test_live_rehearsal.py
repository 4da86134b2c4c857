"""The live tests rehearsed on MiniStack: that they deploy, test and delete, before anyone pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sluiceway_local import emulator, processes, stack

from tests.live import switch
from tests.live.teardown import LeftoversError, Teardown
from tests.local.test_built import python  # noqa: F401 - skips what isn't built

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("python")]

ROOT = Path(__file__).parents[2]
PARTS = ("layers/core", "cli", "local", "client", "")
GONE = "sluiceway-live-00000000"
"""A stack that nobody made."""

NEIGHBOUR = f"{GONE}e"
"""Begins like it, and is another's."""


@pytest.fixture(scope="module")
def endpoint_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty MiniStack that runs functions as they were built."""
    folder, port = tmp_path_factory.mktemp("emulator"), emulator.free_port()
    interpreter = stack.interpreter(built=True, say=lambda _: None)
    process = emulator.start(port, folder / "log", python=interpreter)
    try:
        emulator.wait_until_ready(process, port, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


def run_live(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pytest on the live tests, in a process of its own."""
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/live", *options],
        cwd=ROOT,
        env=processes.clean_environment(
            PYTHONPATH=os.pathsep.join(str(ROOT / part) for part in PARTS), **environment
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def test_live_tests_pass_where_an_emulator_can_show_them_and_leave_nothing(
    endpoint_url: str,
) -> None:
    if not (ROOT / ".venv-sam/bin/sam").exists():
        pytest.skip("there is no sam; run: make build")

    # The authorizer's cache takes a minute here as on AWS, and there it is what is looked at.
    done = run_live("--live-endpoint", endpoint_url, "-k", "not revoked")

    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((ROOT / ".sluiceway/live-rehearsal.json").read_text())
    assert told["rehearsal"] is True
    assert f"nothing is left of {told['stack']}" in done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("a rehearsal: " in line for line in skipped)
    assert told["stack"] not in str(
        emulator.client("dynamodb", endpoint_url).list_tables()["TableNames"]
    )


@pytest.mark.parametrize("wanted", [None, "111122223333"])
def test_account_that_was_not_named_gets_nothing(wanted: str | None, endpoint_url: str) -> None:
    named = {} if wanted is None else {"SLUICEWAY_LIVE_ACCOUNT": wanted}

    done = run_live("--live", AWS_ENDPOINT_URL=endpoint_url, **named)

    assert done.returncode == switch.NOT_ASKED
    assert "of the account 000000000000" in done.stdout
    assert not emulator.client("s3", endpoint_url).list_buckets()["Buckets"]


def test_run_on_an_emulator_is_not_taken_for_one_on_aws(endpoint_url: str) -> None:
    done = run_live("--live", AWS_ENDPOINT_URL=endpoint_url, SLUICEWAY_LIVE_ACCOUNT="000000000000")

    assert done.returncode == switch.NOT_ASKED
    assert "isn't AWS" in done.stdout
    assert not emulator.client("s3", endpoint_url).list_buckets()["Buckets"]


def test_teardown_deletes_what_no_stack_knows_of_any_more(endpoint_url: str) -> None:
    client = partial(emulator.client, endpoint_url=endpoint_url)
    s3, secrets, logs = client("s3"), client("secretsmanager"), client("logs")
    bucket, secret, group = f"{GONE}-code", f"sluiceway/vendors/{GONE}", f"/aws/lambda/{GONE}-x"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"first", b"second"):
        s3.put_object(Bucket=bucket, Key="key", Body=body)
    s3.delete_object(Bucket=bucket, Key="key")
    secrets.create_secret(Name=secret, SecretString="secret")
    logs.create_log_group(logGroupName=group)

    Teardown(GONE, say=lambda _: None, client=client, settle_s=0).run()

    assert bucket not in str(s3.list_buckets()["Buckets"])
    assert secret not in str(secrets.list_secrets(IncludePlannedDeletion=True)["SecretList"])
    assert group not in str(logs.describe_log_groups()["logGroups"])


def test_teardown_leaves_what_only_begins_like_the_stack(endpoint_url: str) -> None:
    client, said = partial(emulator.client, endpoint_url=endpoint_url), list[str]()
    s3, logs, iam, sqs = map(client, ("s3", "logs", "iam", "sqs"))
    bucket, group, role = f"{NEIGHBOUR}-code", f"/aws/lambda/{NEIGHBOUR}-x", f"{NEIGHBOUR}-role"
    s3.create_bucket(Bucket=bucket)
    logs.create_log_group(logGroupName=group)
    iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    url = sqs.create_queue(QueueName=f"{NEIGHBOUR}-queue")["QueueUrl"]

    Teardown(GONE, say=said.append, client=client, settle_s=0).run()

    assert said[:2] == [f"there is no stack {name}" for name in (f"{GONE}-outside", GONE)]
    # Each of these fails when it is gone.
    s3.delete_bucket(Bucket=bucket)
    logs.delete_log_group(logGroupName=group)
    iam.delete_role(RoleName=role)
    sqs.delete_queue(QueueUrl=url)


def test_teardown_tells_what_it_could_not_delete(endpoint_url: str) -> None:
    client = partial(emulator.client, endpoint_url=endpoint_url)
    sqs = client("sqs")
    url = sqs.create_queue(QueueName=f"{GONE}-left")["QueueUrl"]

    with pytest.raises(LeftoversError, match=f"queue {GONE}-left") as failure:
        Teardown(GONE, say=lambda _: None, client=client, settle_s=0).run()

    sqs.delete_queue(QueueUrl=url)
    assert len(failure.value.left) == 1

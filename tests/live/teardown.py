"""Deletes what a live test made, all of it, and says so; by hand:

    python -m tests.live.teardown sluiceway-live-0123abcd

It may be run again, and on what is half there. It touches what CloudFormation lists of the stack,
and what has the stack's name, alone or with more behind a dash.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX = "sluiceway-live-"
STACK_PATTERN = re.compile(rf"{PREFIX}[0-9a-f]{{8}}")
"""Whatever is called otherwise is none of ours, and is refused."""

TAG = "sluiceway-live"
"""Every resource of both stacks has it, with the stack's name as its value."""

DELETE_TIMEOUT_S = 900
SETTLE_TIMEOUT_S = 120.0
"""Lists of AWS show for a while what has been deleted."""

WELCOME_LOG_GROUP = "/aws/apigateway/welcome"
"""API Gateway makes it when an account gets its role for logs."""

Client = Any


def outside(stack: str) -> str:
    """The name of the second stack, which has the vendor."""
    return f"{stack}-outside"


def code_bucket(stack: str, account: str) -> str:
    """The name of the bucket with the code. Names of buckets are unique over all accounts."""
    return f"{stack}-code-{account}"


class LeftoversError(Exception):
    """Something is still there, and may cost money."""

    def __init__(self, left: list[str]) -> None:
        """`left`: what, one a line."""
        super().__init__("still there, look at them by hand:\n  " + "\n  ".join(left))
        self.left = left


def _of_the_environment(service: str) -> Client:
    return boto3.client(service)  # type: ignore[call-overload]


@dataclass
class Teardown:
    """Of one stack, in the account and region of the environment."""

    stack: str
    say: Callable[[str], None] = print
    pause: Callable[[float], None] = time.sleep
    client: Callable[[str], Client] = _of_the_environment
    settle_s: float = SETTLE_TIMEOUT_S
    _resources: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By stack, from before it was deleted."""
    _ids: dict[str, str] = field(default_factory=dict)
    """The stacks' own ids, under which they are found when they are deleted."""

    def __post_init__(self) -> None:
        if not STACK_PATTERN.fullmatch(self.stack):
            raise ValueError(f"{self.stack!r} is no stack of the live tests: {PREFIX}01234567")

    def run(self) -> None:
        """Deletes all of it. Raises LeftoversError when something is left after all."""
        both = (outside(self.stack), self.stack)
        for name in both:
            self._remember(name)
            if name not in self._ids:
                self.say(f"there is no stack {name}")
        failed: list[str] = []
        steps: tuple[Callable[[], None], ...] = (
            *(partial(step, name) for name in both for step in (self._free, self._delete_stack)),
            self._delete_secrets,
            self._delete_buckets,
            self._reset_log_role,
            self._delete_log_groups,
        )
        for step in steps:  # in this order: the vendor's stack has a rule on the other's event bus
            try:
                step()
            except (BotoCoreError, ClientError) as error:  # the others are done all the same
                failed.append(str(error))
        self.say("looking whether anything is left")
        if left := self._settled():
            raise LeftoversError(left + failed)
        for told in failed:
            self.say(f"AWS refused, and nothing came of it: {told}")
        self.say(f"nothing is left of {self.stack}")

    def _ours(self, name: str) -> bool:
        """Whether a name is the stack's or begins with it; one that goes on is another's."""
        return name == self.stack or name.startswith(f"{self.stack}-")

    # -------------------------------------------------------------------- stacks

    def _remember(self, name: str) -> None:
        cloudformation = self.client("cloudformation")
        try:
            self._ids[name] = cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackId"]
            pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
            self._resources[name] = [
                one for page in pages for one in page["StackResourceSummaries"]
            ]
        except ClientError as error:
            if not _is_gone(error):
                raise
            self._resources[name] = []

    def _of(self, name: str, kind: str) -> list[dict[str, Any]]:
        """The stack's resources of a type that were made."""
        return [
            one
            for one in self._resources[name]
            if one["ResourceType"] == kind and one.get("PhysicalResourceId")
        ]

    def _free(self, name: str) -> None:
        """Removes what would keep CloudFormation from deleting, or would stay behind."""
        for one in self._of(name, "AWS::AppConfig::Application"):
            self._empty_configuration(one["PhysicalResourceId"])
        dynamodb = self.client("dynamodb")
        for one in self._of(name, "AWS::DynamoDB::Table"):
            # Deleted with recovery on, a table leaves a backup for 35 days.
            _unless_gone(
                dynamodb.update_continuous_backups,
                TableName=one["PhysicalResourceId"],
                PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": False},
            )

    def _empty_configuration(self, application: str) -> None:
        """Ends deployments and deletes what was pushed."""
        appconfig = self.client("appconfig")
        try:
            environments = appconfig.list_environments(ApplicationId=application)["Items"]
            profiles = appconfig.list_configuration_profiles(ApplicationId=application)["Items"]
        except ClientError as error:
            if _is_gone(error):
                return
            raise
        for environment in environments:
            listed = appconfig.list_deployments(
                ApplicationId=application, EnvironmentId=environment["Id"]
            )["Items"]
            for deployment in listed:
                if deployment["State"] in {"BAKING", "DEPLOYING", "VALIDATING"}:
                    appconfig.stop_deployment(
                        ApplicationId=application,
                        EnvironmentId=environment["Id"],
                        DeploymentNumber=deployment["DeploymentNumber"],
                    )
        for profile in profiles:
            versions = appconfig.list_hosted_configuration_versions(
                ApplicationId=application, ConfigurationProfileId=profile["Id"]
            )["Items"]
            for version in versions:
                _unless_gone(
                    appconfig.delete_hosted_configuration_version,
                    ApplicationId=application,
                    ConfigurationProfileId=profile["Id"],
                    VersionNumber=version["VersionNumber"],
                )

    def _delete_stack(self, name: str) -> None:
        if not self._ids.get(name):
            return
        for last in (False, True):
            self.say(f"deleting the stack {name}")
            self.client("cloudformation").delete_stack(StackName=name)
            status = self._wait_for_deletion(name)
            if status == "DELETE_COMPLETE" or last:
                return  # what is left is told at the end
            self._bypass_protection(name)

    def _wait_for_deletion(self, name: str) -> str:
        """How it ended."""
        cloudformation, ends = self.client("cloudformation"), time.monotonic() + DELETE_TIMEOUT_S
        status = "?"
        while time.monotonic() < ends:
            try:
                answer = cloudformation.describe_stacks(StackName=self._ids[name])
                status = answer["Stacks"][0]["StackStatus"]
            except ClientError as error:
                if not _is_gone(error):
                    raise
                status = "DELETE_COMPLETE"
            if status in {"DELETE_COMPLETE", "DELETE_FAILED"}:
                return status
            self.pause(3)
        return status

    def _bypass_protection(self, name: str) -> None:
        """Accounts may keep AppConfig from deleting what was read within the last hour."""
        appconfig = self.client("appconfig")
        for one in self._of(name, "AWS::AppConfig::Application"):
            application = one["PhysicalResourceId"]
            try:
                environments = appconfig.list_environments(ApplicationId=application)["Items"]
                profiles = appconfig.list_configuration_profiles(ApplicationId=application)["Items"]
            except ClientError as error:
                if _is_gone(error):
                    continue
                raise
            for environment in environments:
                _unless_gone(
                    appconfig.delete_environment,
                    ApplicationId=application,
                    EnvironmentId=environment["Id"],
                    DeletionProtectionCheck="BYPASS",
                )
            for profile in profiles:
                _unless_gone(
                    appconfig.delete_configuration_profile,
                    ApplicationId=application,
                    ConfigurationProfileId=profile["Id"],
                    DeletionProtectionCheck="BYPASS",
                )

    # -------------------------------------------------------------------- what stacks leave

    def _delete_secrets(self) -> None:
        names = [
            one["PhysicalResourceId"]
            for stack in self._resources
            for one in self._of(stack, "AWS::SecretsManager::Secret")
        ]
        for name in (*names, f"sluiceway/vendors/{self.stack}"):
            self._delete_secret(name)

    def _delete_secret(self, name: str) -> None:
        """At once: without that AWS keeps it for 30 days."""
        secrets = self.client("secretsmanager")
        try:
            if "DeletedDate" in secrets.describe_secret(SecretId=name):
                secrets.restore_secret(SecretId=name)
            secrets.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
        except ClientError as error:
            if not _is_gone(error):
                raise

    def _buckets(self) -> list[str]:
        """Of code and of payloads."""
        listed = self.client("s3").list_buckets()["Buckets"]
        names = {one["Name"] for one in listed if self._ours(one["Name"])}
        ours = {
            one["PhysicalResourceId"]
            for name in self._resources
            for one in self._of(name, "AWS::S3::Bucket")
        }
        return sorted(names | (ours & {one["Name"] for one in listed}))

    def _delete_buckets(self) -> None:
        for bucket in self._buckets():
            self._delete_bucket(bucket)

    def _delete_bucket(self, bucket: str) -> None:
        self.say(f"emptying and deleting the bucket {bucket}")
        s3 = self.client("s3")
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            keys = [
                {"Key": one["Key"], "VersionId": one["VersionId"]}
                for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
            ]
            if keys:
                s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
        uploads = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
        for one in uploads:
            s3.abort_multipart_upload(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])
        _unless_gone(s3.delete_bucket, Bucket=bucket)

    def _log_roles(self) -> list[str]:
        """API Gateway's for logs: the template retains it, since it is the whole account's."""
        pages = self.client("iam").get_paginator("list_roles").paginate()
        return [
            role["RoleName"]
            for page in pages
            for role in page["Roles"]
            if self._ours(role["RoleName"])
        ]

    def _reset_log_role(self) -> None:
        """If this stack gave the account its role, it has none again: it had none before."""
        iam, gateway = self.client("iam"), self.client("apigateway")
        for role in self._log_roles():
            self.say(f"deleting the role {role}")
            made = iam.get_role(RoleName=role)["Role"]
            if gateway.get_account().get("cloudwatchRoleArn") == made["Arn"]:
                gateway.update_account(
                    patchOperations=[{"op": "replace", "path": "/cloudwatchRoleArn"}]
                )
                self._delete_welcome(since=made["CreateDate"].timestamp())
            for policy in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
                iam.detach_role_policy(RoleName=role, PolicyArn=policy["PolicyArn"])
            for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]:
                iam.delete_role_policy(RoleName=role, PolicyName=policy)
            _unless_gone(iam.delete_role, RoleName=role)

    def _delete_welcome(self, *, since: float) -> None:
        """The group that came with our role; an older one isn't ours."""
        logs = self.client("logs")
        for group in logs.describe_log_groups(logGroupNamePrefix=WELCOME_LOG_GROUP)["logGroups"]:
            if group["logGroupName"] == WELCOME_LOG_GROUP and group["creationTime"] / 1000 >= since:
                _unless_gone(logs.delete_log_group, logGroupName=WELCOME_LOG_GROUP)

    def _log_groups(self) -> list[str]:
        """Those that a function or an API made by itself, and what a stack left."""
        logs = self.client("logs")
        apis = [
            one["PhysicalResourceId"]
            for name in self._resources
            for one in self._of(name, "AWS::ApiGateway::RestApi")
        ]
        prefixes = [f"{self.stack}-", f"/aws/lambda/{self.stack}-"]
        prefixes += [f"API-Gateway-Execution-Logs_{api}/" for api in apis]
        return sorted(
            group["logGroupName"]
            for prefix in prefixes
            for page in logs.get_paginator("describe_log_groups").paginate(
                logGroupNamePrefix=prefix
            )
            for group in page["logGroups"]
        )

    def _delete_log_groups(self) -> None:
        for group in self._log_groups():
            self.say(f"deleting the log group {group}")
            _unless_gone(self.client("logs").delete_log_group, logGroupName=group)

    # -------------------------------------------------------------------- what is left

    def _settled(self) -> list[str]:
        """What is left when the lists had time to follow."""
        ends = time.monotonic() + self.settle_s
        while left := sorted(self.left()):
            if time.monotonic() > ends:
                break
            self.pause(5)
        return left

    def left(self) -> Iterator[str]:
        """What has the stack's name or tag, of every service that the templates use."""
        yield from self._left_of_stacks()
        for kind, listed in self._by_name():
            yield from (f"{kind} {name}" for name in listed if self._ours(name))
        yield from (f"bucket {name}" for name in self._buckets())
        pages = self.client("secretsmanager").get_paginator("list_secrets")
        yield from (
            f"secret {one['Name']}"
            for page in pages.paginate(IncludePlannedDeletion=True)
            for one in page["SecretList"]
            if any(self._ours(part) for part in one["Name"].split("/"))
            or any(tag == {"Key": TAG, "Value": self.stack} for tag in one.get("Tags", ()))
        )
        yield from (f"log group {group}" for group in self._log_groups())
        yield from self._left_by_tag()

    def _left_of_stacks(self) -> Iterator[str]:
        """What CloudFormation says it failed to delete; what it retained is looked for by name."""
        cloudformation = self.client("cloudformation")
        for name in (outside(self.stack), self.stack):
            try:
                stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
            except ClientError as error:
                if not _is_gone(error):
                    raise
                continue
            if stack["StackStatus"] != "DELETE_COMPLETE":
                reason = stack.get("StackStatusReason", "")
                yield f"stack {name} ({stack['StackStatus']}) {reason}".rstrip()

    def _by_name(self) -> Iterator[tuple[str, list[str]]]:
        """The names of all there is, by kind."""
        every = {"list_backups": {"BackupType": "ALL"}}  # those that DynamoDB made, too
        listed: tuple[tuple[str, str, str, str, str], ...] = (
            ("function", "lambda", "list_functions", "Functions", "FunctionName"),
            ("table", "dynamodb", "list_tables", "TableNames", ""),
            ("backup", "dynamodb", "list_backups", "BackupSummaries", "TableName"),
            ("role", "iam", "list_roles", "Roles", "RoleName"),
            ("API", "apigateway", "get_rest_apis", "items", "name"),
            ("alarm", "cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
            ("dashboard", "cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
            ("schedule", "scheduler", "list_schedules", "Schedules", "Name"),
            ("application", "appconfig", "list_applications", "Items", "Name"),
            ("strategy", "appconfig", "list_deployment_strategies", "Items", "Name"),
        )
        for kind, service, operation, member, name in listed:
            client = self.client(service)
            try:
                pages = client.get_paginator(operation).paginate(**every.get(operation, {}))
                found = [one for page in pages for one in page.get(member, ())]
            except ClientError as error:
                if not _is_unknown(error):
                    raise
                continue  # an emulator has no such list, and so no such thing
            yield kind, [one[name] if name else one for one in found]
        buses = self.client("events").list_event_buses(NamePrefix=self.stack)["EventBuses"]
        yield "event bus", [one["Name"] for one in buses]
        queues = self.client("sqs").list_queues(QueueNamePrefix=self.stack).get("QueueUrls", [])
        yield "queue", [url.rsplit("/", 1)[1] for url in queues]

    def _left_by_tag(self) -> Iterator[str]:
        """What has our tag, and a name of its own. AWS lists what *was* tagged, too: what has the
        stack's name was looked up by it, and of the rest CloudFormation says what it deleted.
        """
        gone = {
            one["PhysicalResourceId"]
            for name, stack_id in self._ids.items()
            for one in self._after(stack_id) or self._resources[name]
            if one["ResourceStatus"] == "DELETE_COMPLETE" and one.get("PhysicalResourceId")
        }
        try:
            pages = (
                self.client("resourcegroupstaggingapi")
                .get_paginator("get_resources")
                .paginate(TagFilters=[{"Key": TAG, "Values": [self.stack]}])
            )
            arns = [one["ResourceARN"] for page in pages for one in page["ResourceTagMappingList"]]
        except ClientError as error:
            if not _is_unknown(error):
                raise
            return
        for arn in arns:
            if not any(self._ours(part) for part in re.split("[:/]", arn)) and not any(
                names(arn, physical_id) for physical_id in gone
            ):
                yield f"tagged {arn}"

    def _after(self, stack_id: str) -> list[dict[str, Any]]:
        """The stack's resources as they ended; a deleted stack is known by its id for 90 days."""
        try:
            pages = (
                self.client("cloudformation")
                .get_paginator("list_stack_resources")
                .paginate(StackName=stack_id)
            )
            return [one for page in pages for one in page["StackResourceSummaries"]]
        except ClientError as error:
            if not _is_gone(error):
                raise
            return []


def names(arn: str, physical_id: str) -> bool:
    """Whether an ARN is of the resource with this physical id, which is an ARN, URL or name."""
    tail = physical_id.rsplit("/", 1)[-1] if "://" in physical_id else physical_id
    tail = tail.rsplit("|", 1)[-1]  # an id in two parts: of what it belongs to, and its own
    return arn == physical_id or bool(
        re.search(rf"(?:^|[:/]){re.escape(tail)}(?::\*|:[\w$]+)?$", arn)
    )


def _unless_gone(call: Callable[..., Any], **request: Any) -> None:
    try:
        call(**request)
    except ClientError as error:
        if not _is_gone(error):
            raise


def _is_gone(error: ClientError) -> bool:
    told = error.response["Error"]
    code = told["Code"]
    return (
        "NotFound" in code
        or code in {"NoSuchBucket", "NoSuchEntity", "404"}
        or (code == "ValidationError" and "does not exist" in told.get("Message", ""))
    )


def _is_unknown(error: ClientError) -> bool:
    """Whether the endpoint lacks the operation, as emulators do."""
    code = error.response["Error"]["Code"]
    return code in {"InvalidAction", "UnknownOperationException", "NotImplemented", "501"}


def main() -> None:
    """Entry point."""
    try:
        (stack,) = sys.argv[1:]
        teardown = Teardown(stack)
        sts = boto3.client("sts")
        account = sts.get_caller_identity()["Account"]
        # In another account or region nothing is found, which isn't that nothing is left.
        print(f"looking in the account {account}, {sts.meta.region_name}")  # noqa: T201
        teardown.run()
    except ValueError as error:
        sys.exit(f"{error}\nusage: python -m tests.live.teardown {PREFIX}01234567")
    except (LeftoversError, ClientError, BotoCoreError) as error:
        sys.exit(f"the teardown of {stack} is not complete: {error}")


if __name__ == "__main__":
    main()

"""MiniStack, the emulator that runs inside this Python: no Docker, no account.

What it leaves out of a deployment is done here afterwards, so that the template stays AWS's.
"""

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.config import Config
from localstack_client.session import Session
from sluiceway_cli.target import emulator_session

from sluiceway_local import processes
from sluiceway_local.processes import REGION, Process

START_TIMEOUT_S = 60.0

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens addresses of this machine, past the proxies of the environment."""


def start(port: int, log: Path, *, python: str = sys.executable) -> Process:
    """Starts MiniStack on loopback; `wait_until_ready` tells when it answers.

    Raises RuntimeError when somebody else has the port.
    """
    if not port_is_free(port):
        raise RuntimeError(f"port {port} is in use; choose another with --port")
    scratch = log.parent.absolute() / "tmp"  # it leaves each function's unpacked code behind
    scratch.mkdir(exist_ok=True)
    return processes.start(
        [python, "-m", "ministack"],
        env=processes.clean_environment(
            BIND_HOST="127.0.0.1",
            GATEWAY_PORT=str(port),
            MINISTACK_REGION=REGION,
            LAMBDA_EXECUTOR="local",
            LOG_LEVEL="WARNING",
            IOT_MTLS_ENABLED="false",  # these two would listen on every interface
            SFTP_ENABLED="false",
            PYTHONWARNINGS="ignore",
            PYTHONBREAKPOINT="0",  # functions talk to it by their standard input, as pdb would
            TMPDIR=str(scratch),
        ),
        log=log,
    )


def wait_until_ready(process: Process, port: int, log: Path) -> None:
    """Returns when the emulator answers. Raises RuntimeError when it doesn't come up."""
    ready = processes.wait_for(
        lambda: healthy(f"http://127.0.0.1:{port}") or not process.alive(),
        timeout_s=START_TIMEOUT_S,
        pause_s=0.1,
    )
    if not ready or not process.alive():
        raise RuntimeError(f"the emulator didn't start; see {log}")


def healthy(endpoint_url: str) -> bool:
    """Whether an emulator answers there."""
    try:
        with direct.open(f"{endpoint_url}/_ministack/health", timeout=2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004
    except (OSError, urllib.error.URLError):
        return False


def port_is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Session(Session):  # type: ignore[misc]  # it has no types
    """Of clients that go to one address, and nowhere else.

    Alone it prefers AWS_ENDPOINT_URL, which may be another stack's or AWS's, and boto3's default
    session, which reads the user's profile.
    """

    def __init__(self, endpoint_url: str) -> None:
        super().__init__("test", "test", None, REGION)
        self.endpoint_url = endpoint_url

    def client(self, service_name: str, **kwargs: Any) -> Any:
        return emulator_session().client(
            service_name,
            **{**kwargs, "region_name": self.region_name, "endpoint_url": self.endpoint_url},
        )


def client(service: str, endpoint_url: str) -> Any:
    """A client of the emulator, with credentials that open nothing else."""
    return _Session(endpoint_url).client(
        service,
        config=Config(retries={"mode": "standard", "total_max_attempts": 3}, read_timeout=120),
    )


def processes_of(function: str, *, emulator_pid: int) -> list[int]:
    """The ids of the processes that this function, a physical name, has now."""
    listed = subprocess.run(
        ["/bin/ps", "-A", "-ww", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    children = [
        int(pid)
        for pid, parent in (line.split() for line in listed.splitlines())
        if int(parent) == emulator_pid
    ]
    return [pid for pid in children if f"AWS_LAMBDA_FUNCTION_NAME={function}" in _environment(pid)]


def _environment(pid: int) -> str:
    """As far as it is ours to see."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return subprocess.run(  # noqa: S603 - a number
            ["/bin/ps", "eww", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout


def apply_what_is_left_out(
    endpoint_url: str,
    template: Mapping[str, Any],
    outputs: Mapping[str, str],
    *,
    reserved: int,
) -> str:
    """Does what MiniStack's CloudFormation skips, and gives the id of the REST API.

    These are the workers' reserved concurrency, the gateway's own error replies, and the media
    types that it takes for binary.
    """
    client("lambda", endpoint_url).put_function_concurrency(
        FunctionName=outputs["RunJobFunctionName"], ReservedConcurrentExecutions=reserved
    )
    gateway = client("apigateway", endpoint_url)
    api_id: str = outputs["ApiUrl"].split("//", 1)[1].split(".", 1)[0]
    for kind, reply in template["Resources"]["Api"]["Properties"]["GatewayResponses"].items():
        gateway.put_gateway_response(
            restApiId=api_id,
            responseType=kind,
            **({"statusCode": reply["StatusCode"]} if "StatusCode" in reply else {}),
            responseParameters={
                f"gatewayresponse.header.{name}": value
                for name, value in reply["ResponseParameters"]["Headers"].items()
            },
            responseTemplates=reply["ResponseTemplates"],
        )
    gateway.update_rest_api(
        restApiId=api_id,
        patchOperations=[{"op": "add", "path": "/binaryMediaTypes/application~1octet-stream"}],
    )
    gateway.create_deployment(restApiId=api_id, stageName="v1")
    return api_id

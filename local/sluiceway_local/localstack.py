"""LocalStack without Docker: for what it emulates nearer to AWS than others do, such as SQS.

4.14 is the last version that needs no account. It needs a Python 3.13 and an environment of its
own, which `make .venv-localstack/installed` makes. Run like this, it has no functions, for which it
needs Docker, and no tables, for which it fetches DynamoDB Local: see dynamodb_local.py.
"""

from pathlib import Path

from sluiceway_local import processes
from sluiceway_local.emulator import direct, free_port
from sluiceway_local.processes import Process

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-localstack"
SERVICES = ("events", "s3", "secretsmanager", "sqs", "sts")
"""What it serves; it refuses the others."""

START_TIMEOUT_S = 90.0


def unavailable(environment: Path = ENVIRONMENT) -> str | None:
    """Why it can't run on this machine; None when it can."""
    if not (environment / "installed").exists():
        return "LocalStack isn't there: make .venv-localstack/installed, with a Python 3.13"
    return None


def start(log: Path, environment: Path = ENVIRONMENT) -> tuple[Process, str]:
    """Starts it on a free port, empty; gives the process and the endpoint URL.

    What it writes is in the log's folder. Raises RuntimeError when it doesn't come up.
    """
    port = free_port()
    address = f"127.0.0.1:{port}"
    url = f"http://{address}"
    folder = log.parent.resolve()
    process = processes.start(
        [str(environment.resolve() / "bin/python"), "-m", "localstack.runtime.main"],
        env=processes.clean_environment(
            GATEWAY_LISTEN=address,
            # Its usual server listens on every address of the machine, whatever it is told.
            GATEWAY_SERVER="hypercorn",
            # Else queues get URLs of a name that only the internet resolves.
            LOCALSTACK_HOST=address,
            SQS_ENDPOINT_STRATEGY="path",
            SERVICES=",".join(SERVICES),
            # It calls nobody: no counts of what is used, no certificate, no names.
            DISABLE_EVENTS="1",
            SKIP_SSL_CERT_DOWNLOAD="1",
            DNS_ADDRESS="0",
            HOME=str(folder),
            # In a container it would take itself for its own image, and write to its places there.
            OVERRIDE_IN_DOCKER="0",
            FILESYSTEM_ROOT=str(folder / "localstack"),
            LOCALSTACK_VOLUME_DIR=str(folder / "localstack"),
        ),
        log=log,
    )
    processes.wait_until_ready(
        process,
        lambda: _answers(url),
        timeout_s=START_TIMEOUT_S,
        failure=f"LocalStack didn't start; see {log}",
    )
    return process, url


def _answers(url: str) -> bool:
    try:
        direct.open(f"{url}/_localstack/health", timeout=2).close()
    except OSError:
        return False
    return True

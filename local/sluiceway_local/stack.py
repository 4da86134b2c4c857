"""The local stack as a whole: up, down, status."""

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse
from sluiceway.adapters.dynamodb import Table
from sluiceway.adapters.dynamodb_partner_keys import DynamoDBPartnerKeys
from sluiceway.bootstrap import SystemClock
from sluiceway.domain import catalogue as catalogues
from sluiceway.domain.api_key import SCOPES
from sluiceway.domain.errors import ConfigurationError
from sluiceway_cli.configurations import with_vendor
from sluiceway_cli.keys import create_key
from sluiceway_cli.target import Target

from sluiceway_local import deploy, emulator, mappings, processes, pythons, state
from sluiceway_local import watch as watching
from sluiceway_local.processes import REGION, Process
from sluiceway_local.redeploy import Outcome
from sluiceway_local.state import LocalStack, Running

STACK = "sluiceway-local"
DEFAULT_PORT = 4566
PARTNERS = {
    "acme": SCOPES,
    "globex": ("submit", "read", "cancel"),
}
"""Two tenants with their scopes: one that may everything, one ordinary."""

DEFAULT_CATALOGUE = Path(__file__).with_name("catalogue.toml")
FAKE_VENDOR_KEY = "local-vendor-key"
SIMULATOR_TIMEOUT_S = 20.0
STAY_PAUSE_S = 1.0
OTHERS_S = 60.0
"""For which whoever stays waits for an `up`, a `down` or an `invoke` of somebody else."""
TIDY_EACH_S = 30.0
BUILT_PYTHON = "3.13"
"""Of the template's runtime."""


def source(*, built: bool = False) -> deploy.Source:
    """What to deploy: the repository of this folder, or of this package.

    Raises RuntimeError when `built` is asked for before `make build`.
    """
    here = Path.cwd()
    root = here if (here / "template.yaml").exists() else Path(__file__).resolve().parents[2]
    found = deploy.Source(root, built)
    if not found.template.exists():
        what = "there is nothing built; run: make build" if built else "there is no template.yaml"
        raise RuntimeError(what)
    return found


def up(
    source: deploy.Source,
    *,
    port: int = DEFAULT_PORT,
    vendor_url: str | None = None,
    catalogue: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    folder: Path = state.FOLDER,
    python: str = sys.executable,
    wait_s: float = 0.0,
) -> LocalStack:
    """Starts what isn't running, deploys, and writes `.sluiceway/local.json`.

    On a running stack only the deployment is repeated, and the data stays; so does what was pushed,
    unless `catalogue` is given. Another that is at work on the stack is waited for, for `wait_s`.
    Raises RuntimeError or ConfigurationError with what is wrong, and leaves nothing half-started.
    """
    if vendor_url is not None and not re.fullmatch(r"(?i:https?)://[^\s\"\\\\]+", vendor_url):
        raise RuntimeError(f"{vendor_url!r} is no URL of a vendor")
    with state.locked(folder, wait_s=wait_s):
        return _up(source, port, vendor_url, catalogue, say, folder, python)


def _up(
    source: deploy.Source,
    port: int,
    vendor_url: str | None,
    catalogue: Path | None,
    say: Callable[[str], None],
    folder: Path,
    python: str,
) -> LocalStack:
    template = yaml_parse(source.template.read_text())
    given = None if catalogue is None else catalogue.read_text()
    if given is not None:  # before anything starts
        _check(given, template)
    before = state.read(folder)
    running = earlier = _still_running(state.read_running(folder))
    started: list[Process] = []

    def launch(name: str, make: Callable[[], Process]) -> Process:
        """Known before it is waited for, so that an interruption leaves nothing behind."""
        nonlocal running
        process = make()
        started.append(process)
        running = Running({**running.processes, name: process})
        state.write_running(running, folder)
        return process

    try:
        if "emulator" not in running.processes:
            say("starting the emulator (MiniStack)")
            log = folder / "emulator.log"
            emulator.wait_until_ready(
                launch("emulator", lambda: emulator.start(port, log, python=python)), port, log
            )
            before = None  # its data went with the last one
            endpoint_url = f"http://127.0.0.1:{port}"
        else:
            _check_python(running.processes["emulator"], python)
            endpoint_url = before.endpoint_url if before else f"http://127.0.0.1:{port}"
        if vendor_url is None:
            if "simulator" not in running.processes:
                say("starting the vendor simulator")
                launch("simulator", lambda: _start_simulator(folder))
            vendor_url = f"{_simulator_url(running.processes['simulator'], folder)}/v1"
        say("deploying template.yaml")
        return _deploy(
            source,
            endpoint_url=endpoint_url,
            vendor_url=vendor_url,
            catalogue=given,
            before=before,
            pid=running.processes["emulator"].pid,
            folder=folder,
        )
    except BaseException:
        for process in started:
            process.stop()
        state.write_running(earlier, folder)
        raise


def down(folder: Path = state.FOLDER, *, wait_s: float = 0.0) -> list[str]:
    """Stops what `up` started, and gives the names of what was still running.

    Another that is at work on the stack is waited for, for `wait_s`.
    """
    with state.locked(folder, wait_s=wait_s):
        running = _still_running(state.read_running(folder))
        for process in running.processes.values():
            process.stop()
        state.forget(folder)
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        return sorted(running.processes)


def clear(folder: Path = state.FOLDER) -> None:
    """`down` after the emulator's end, unless a `down` is at it, which has ended it."""
    with contextlib.suppress(state.BusyError):
        down(folder)


def running(folder: Path = state.FOLDER) -> LocalStack | None:
    """The stack of this folder, if it runs."""
    alive = "emulator" in _still_running(state.read_running(folder)).processes
    return state.read(folder) if alive else None


def stay(source: deploy.Source, folder: Path = state.FOLDER) -> None:
    """Tidies up; returns when the emulator has ended, or by KeyboardInterrupt."""
    alive = _tended(source, folder)
    while alive():
        time.sleep(STAY_PAUSE_S)


def watch(
    source: deploy.Source,
    files: watching.Files,
    *,
    deployed: dict[str, str],
    tell: Callable[[watching.Told], None],
    vendor_url: str | None = None,
    folder: Path = state.FOLDER,
) -> None:
    """Deploys again what changes in `files`; returns as `stay` does."""
    now = state.read(folder)
    endpoint_url = now.endpoint_url if now else ""

    def deploy_apart(changed: list[str]) -> Outcome:
        return watching.deploy_apart(
            files, changed, endpoint_url=endpoint_url, vendor_url=vendor_url, folder=folder
        )

    watching.follow(
        files,
        deploy_apart,
        deployed=deployed,
        alive=_tended(source, folder),
        tell=tell,
        pause=lambda: time.sleep(watching.PAUSE_S),
    )


def _tended(source: deploy.Source, folder: Path) -> Callable[[], bool]:
    """Says whether the emulator runs, looking once a second, and tidies up each half minute."""
    looked_s = tidied_s = time.monotonic()
    stack = running(folder)

    def alive() -> bool:
        nonlocal looked_s, tidied_s, stack
        if time.monotonic() - looked_s >= STAY_PAUSE_S:
            looked_s, stack = time.monotonic(), running(folder)
            if stack is not None and looked_s - tidied_s > TIDY_EACH_S:
                tidied_s = looked_s
                # What fails, as in the midst of a `down` or an edit, is done the next time.
                with contextlib.suppress(Exception):
                    _tidy_up(yaml_parse(source.template.read_text()), stack, folder)
        return stack is not None

    return alive


def status(folder: Path = state.FOLDER) -> dict[str, Any]:
    """What runs here."""
    stack = state.read(folder)
    alive = _still_running(state.read_running(folder))
    return {
        "running": stack is not None and "emulator" in alive.processes,
        "api_url": stack.api_url if stack else None,
        "endpoint_url": stack.endpoint_url if stack else None,
        "vendor_url": stack.vendor_url if stack else None,
        "processes": {name: process.pid for name, process in alive.processes.items()},
    }


def _deploy(
    source: deploy.Source,
    *,
    endpoint_url: str,
    vendor_url: str,
    catalogue: str | None,
    before: LocalStack | None,
    pid: int,
    folder: Path,
) -> LocalStack:
    outputs = deploy.deploy(source, endpoint_url=endpoint_url, stack=STACK)
    _push(catalogue, outputs, endpoint_url=endpoint_url, vendor_url=vendor_url)
    template = yaml_parse(source.template.read_text())
    api_id = emulator.apply_what_is_left_out(
        endpoint_url,
        template,
        outputs,
        reserved=deploy.reserved_concurrency(template),
    )
    stack = LocalStack(
        api_url=f"{endpoint_url}/_aws/execute-api/{api_id}/v1",
        endpoint_url=endpoint_url,
        region=REGION,
        stack=STACK,
        partners=before.partners if before else {},
        outputs=outputs,
        vendor_url=vendor_url,
        pid=pid,
    )
    if not stack.partners:
        keys = DynamoDBPartnerKeys(
            Table(emulator.client("dynamodb", endpoint_url)), outputs["PartnersTableName"]
        )
        made = {
            tenant: create_key(tenant, scopes, keys=keys, clock=SystemClock())[0]
            for tenant, scopes in PARTNERS.items()
        }
        stack = replace(stack, partners=made)
    state.write(stack, folder)
    _tidy_up(template, stack, folder)
    return stack


def _tidy_up(template: dict[str, Any], stack: LocalStack, folder: Path) -> None:
    """Ends what is left of earlier deployments, and of an `invoke --poll` that was killed."""
    deploy.forget_old_versions(
        template, endpoint_url=stack.endpoint_url, stack=stack.stack, now_s=time.time()
    )
    mappings.repair(stack.endpoint_url, folder)


def _check(text: str, template: dict[str, Any]) -> None:
    """Raises ConfigurationError."""
    faults = catalogues.check_times(catalogues.parse(text), lease_s=deploy.lease_s(template))
    if faults:
        raise ConfigurationError(faults)


def _push(
    given: str | None, outputs: dict[str, str], *, endpoint_url: str, vendor_url: str
) -> None:
    """Deploys the catalogue: the one that is given, else what is in force or the default."""
    target = Target(
        api_url="", outputs=outputs, endpoint_url=endpoint_url, region=REGION, vendor_url=vendor_url
    )
    profile = target.catalogue_profile
    seen = profile.history()
    latest = seen.under_way or seen.running
    in_force = None if latest is None else profile.text(latest.version)
    text = with_vendor(given or in_force or DEFAULT_CATALOGUE.read_text(), vendor_url)
    vendors = catalogues.parse(text).vendors.values()
    _make_secrets(endpoint_url, {vendor.api_key_secret for vendor in vendors} - {""})
    if text != in_force:
        if seen.under_way is not None:  # its text goes on in this one
            seen = profile.take_back(seen.under_way, pause=time.sleep)
        profile.push(
            text,
            target.rollout_id(gradual=False),
            seen=seen,
            description="by: sluiceway local up",
        )


def _make_secrets(endpoint_url: str, names: set[str]) -> None:
    client = emulator.client("secretsmanager", endpoint_url)
    for name in sorted(names):
        try:
            client.create_secret(Name=name, SecretString=FAKE_VENDOR_KEY)
        except client.exceptions.ResourceExistsException:
            continue


def _start_simulator(folder: Path) -> Process:
    return processes.start(
        [sys.executable, "-m", "sluiceway_local.simulator", "--port", "0"],
        env=processes.clean_environment(),
        log=folder / "simulator.log",
    )


def _simulator_url(process: Process, folder: Path) -> str:
    """Where it listens: it says so in its first line. Raises RuntimeError when it doesn't start."""
    log = folder / "simulator.log"
    told = "listening on "
    processes.wait_for(
        lambda: told in log.read_text() or not process.alive(), timeout_s=SIMULATOR_TIMEOUT_S
    )
    text = log.read_text()
    if told not in text:
        raise RuntimeError(f"the vendor simulator didn't start; see {log}")
    return text.split(told, 1)[1].split()[0]


def _check_python(running: Process, python: str) -> None:
    """Functions run in the emulator's own Python, and a layer is built for one."""
    if running.program != python:
        raise RuntimeError("the running stack has another Python; first: sluiceway local down")


def _still_running(running: Running) -> Running:
    return Running({name: one for name, one in running.processes.items() if one.alive()})


def interpreter(*, built: bool, say: Callable[[str], None]) -> str:
    """The Python that runs MiniStack, and so the functions: ours, or for `built` the template's.

    Raises RuntimeError when `built` needs a Python that can't be found.
    """
    if not built:
        return sys.executable
    if f"{sys.version_info.major}.{sys.version_info.minor}" == BUILT_PYTHON:
        return sys.executable
    environment = state.FOLDER / f"python{BUILT_PYTHON}"
    python = environment / "bin/python"
    if not (environment / "ready").exists():
        found = pythons.find(BUILT_PYTHON)
        if found is None:
            raise RuntimeError(f"--built needs a Python {BUILT_PYTHON}; there is none")
        say(f"making an environment with Python {BUILT_PYTHON} for what was built")
        lock = source().root / "requirements/local.txt"
        for command in (
            [found, "-m", "venv", "--clear", str(environment)],
            [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--require-hashes",
                "-r",
                str(lock),
            ],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise RuntimeError(done.stderr.strip())
        (environment / "ready").touch()
    return str(python.absolute())

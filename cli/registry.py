"""Ask pip for one released archive, in a process of its own.

Run by `glm_pto.cli.fetch`, never imported by it: pip keeps its session, finder and lazy wheel reader
internal, so they may move, and importing them here keeps a moved name from breaking the command line.
The index, proxies, certificates and credentials are those of the user's pip configuration.

``registry.py NAME VERSION PACKAGE FOLDER`` leaves an sdist, or a zip with the wanted members of a wheel,
in FOLDER and writes one line of JSON to the standard output: ``{"archive", "sha256"}`` or ``{"error", ...}``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

Found = dict[str, Any]
NEAR = 1 << 20  # a gap of this many bytes costs less than another request


def main(name: str, version: str, package: str, where: str) -> Found:
    """Download the sdist of a release, else read the package's sources out of its wheel."""
    try:
        from pip._internal.commands.download import DownloadCommand
    except ImportError as error:
        missing = error.name is not None and error.name.partition(".")[0] == "pip" and "." not in error.name
        return {"error": "no-pip" if missing else "other-pip", "detail": str(error)}
    try:
        command = DownloadCommand("download", "")
        with command.main_context():
            return locate(command, name, version, package, Path(where))
    except (ImportError, AttributeError, TypeError) as error:
        return {"error": "other-pip", "detail": f"{type(error).__name__}: {error}"}
    except OSError as error:  # requests' errors too
        return {"error": "offline", "detail": f"{type(error).__name__}: {error}"}


def locate(command: Any, name: str, version: str, package: str, folder: Path) -> Found:
    """Find the release among what pip's own finder sees, sources before wheels."""
    options, _ = command.parse_args(["--no-deps", "--pre", "--retries", "2", name])
    session = command.get_default_session(options)
    finder = command._build_package_finder(options=options, session=session, ignore_requires_python=True)
    candidates = finder.find_all_candidates(name)
    same = [c for c in candidates if str(c.version) == version]
    for candidate in same:
        if not candidate.link.is_wheel:
            return sdist(session, candidate.link, folder)
    for candidate in same:
        return wheel(session, candidate.link, package, folder)
    return {"error": "no-release", "versions": [str(v) for v in sorted({c.version for c in candidates})]}


def sdist(session: Any, link: Any, folder: Path) -> Found:
    """Download one file and compare it with the hash that the index gives."""
    path = folder / Path(link.filename).name
    reply = session.get(link.url_without_fragment, stream=True, headers={"Accept-Encoding": "identity"})
    reply.raise_for_status()
    seen = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in reply.iter_content(1 << 16):
            file.write(chunk)
            seen.update(chunk)
    if link.hash_name == "sha256" and link.hash != seen.hexdigest():
        return {"error": "hash", "detail": f"{path.name}: expected {link.hash}, found {seen.hexdigest()}"}
    return {"archive": path.name, "sha256": seen.hexdigest()}


def wheel(session: Any, link: Any, package: str, folder: Path) -> Found:
    """Read the Python files of one package out of a wheel by range requests: a few MB of some hundred."""
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP

    path = folder / f"{Path(link.filename).stem}.members.zip"
    with LazyZipOverHTTP(link.url_without_fragment, session) as remote, zipfile.ZipFile(path, "w") as kept:
        archive = zipfile.ZipFile(remote)
        names = archive.namelist()
        info = next(n.partition("/")[0] for n in names if n.endswith(".dist-info/RECORD"))
        hashes = dict(line.split(",")[:2] for line in archive.read(f"{info}/RECORD").decode().splitlines())
        wanted = [n for n in names if n.startswith(f"{package}/") and n.endswith(".py")]
        wanted.append(f"{info}/METADATA")
        for start, end in spans(archive, set(wanted)):
            remote.seek(start)
            remote.read(end - start)  # kept by the lazy file: the members below ask for nothing more
        for member in wanted:
            data = archive.read(member)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            if hashes.get(member) != f"sha256={digest}":
                return {"error": "hash", "detail": f"{link.filename}: {member} differs from its RECORD"}
            kept.writestr(member, data)
    return {"archive": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def spans(archive: zipfile.ZipFile, wanted: set[str]) -> list[tuple[int, int]]:
    """Byte ranges that hold the wanted members, few and long: a request for each member takes minutes."""
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    ends = [entry.header_offset for entry in entries[1:]] + [archive.start_dir]
    found: list[tuple[int, int]] = []
    for entry, end in zip(entries, ends, strict=True):
        if entry.filename not in wanted:
            continue
        if found and entry.header_offset - found[-1][1] < NEAR:
            found[-1] = (found[-1][0], end)
        else:
            found.append((entry.header_offset, end))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:5])) + "\n")

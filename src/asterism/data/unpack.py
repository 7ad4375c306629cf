"""Unpacks an archive without trusting it: nothing lands outside the target, which appears whole or never."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path

from asterism.errors import AsterismError


def unpack(archive: Path, target: Path) -> None:
    """The content of a .tar, .tar.gz, .tgz or .zip file as the new folder ``target``."""
    partial = target.with_name(f".{target.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        if zipfile.is_zipfile(archive):
            _unzip(archive, partial)
        else:
            with tarfile.open(archive) as file:
                file.extractall(partial, filter="data")
        partial.rename(target)
    except tarfile.FilterError as error:
        raise AsterismError(f"the archive is not safe to unpack: {error}", where=str(archive)) from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise AsterismError(f"the archive is damaged: {error}", where=str(archive), fix="fetch it again") from None
    except OSError as error:
        raise AsterismError(
            f"cannot unpack: {error.strerror or error}",
            where=str(target),
            fix="free some space and try again",
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            if not (target / name).resolve().is_relative_to(target.resolve()):
                raise AsterismError(f"the archive is not safe to unpack: {name!r}", where=str(archive))
        file.extractall(target)

"""Errors for files that cannot be written say what is wrong and what to type."""

from pathlib import Path

import pytest

from onetool.errors import StorageError
from onetool.state.documents import DocumentFile, Documents
from onetool.state.stats.database import StatisticsFile


def write(directory: Path) -> StorageError:
    """Return the error of a document that cannot be written to the directory."""
    with pytest.raises(StorageError) as caught:
        Documents(DocumentFile(directory), "kind").update("name", lambda _: 1)
    return caught.value


def test_a_link_to_a_missing_directory_is_named(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "missing")
    error = write(link)
    assert (
        error.message
        == f"cannot write {link / 'state'}: {link} is a link to {tmp_path / 'missing'}, which does"
        " not exist"
    )
    assert error.hint == f"remove the link with `rm {link}`, or create what it leads to"


def test_a_link_to_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "stats.db"
    file.symlink_to(tmp_path / "missing")
    with pytest.raises(StorageError, match="is a link to"), StatisticsFile(file).reading():
        pass


def test_a_file_instead_of_a_directory_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    assert (
        write(tmp_path).hint
        == f"check that {tmp_path / 'state'} is a directory that can be written"
    )

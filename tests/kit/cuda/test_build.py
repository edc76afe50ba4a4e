from pathlib import Path

import pytest

from tests.kit.cuda.build import NoCompilerError, private_folder


def test_the_folder_of_the_library_is_the_users_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "cache" / "double")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(private_folder(tmp_path / "own"))
    (tmp_path / "file").touch(mode=0o600)
    for path in (shared, link, tmp_path / "file"):
        with pytest.raises(NoCompilerError):
            private_folder(path)

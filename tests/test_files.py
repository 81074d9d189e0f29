"""Places to write to, looked at before the work."""

import resource
from argparse import ArgumentTypeError

import pytest

from diffusers_text_nfdm.files import output_file, output_folder, write_file, writing


def test_a_place_that_can_be_written_is_taken_and_left_as_it_is(tmp_path):
    for kind in (output_file, output_folder):
        path = tmp_path / "new" / "folder" / "result.json"
        assert kind(str(path)) == path
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.json").write_text("old")
    assert output_file(str(tmp_path / "old.json")).read_text() == "old" and output_folder(str(tmp_path)) == tmp_path


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentTypeError, match="is a folder; give a file"):
        output_file(str(tmp_path))
    for path in ("/proc/result.json", str(tmp_path / "file" / "result.json"), str(tmp_path / ("x" * 300))):
        with pytest.raises(ArgumentTypeError, match="cannot be written"):
            output_file(path)
        with pytest.raises(ArgumentTypeError, match="cannot be written"):
            output_folder(path)


def test_a_write_that_fails_names_its_file_and_leaves_the_old_one(tmp_path):
    """The kernel refuses files beyond a limit."""
    path = tmp_path / "summary.json"
    write_file(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=f"Could not write {path}: .*File too large"):
            write_file(path, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == ["summary.json"]


def test_a_mistake_of_ours_is_not_called_a_failed_write(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path / "x"):
        raise KeyError("x")

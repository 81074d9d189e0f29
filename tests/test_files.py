"""Places to write to, looked at before the work."""

import re
import resource
import runpy
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from diffusers_text_nfdm.files import output_file, output_folder, write_file, writing


ROOT = Path(__file__).parents[1]
# Every tool with the option that names what it writes.
TOOLS = [
    (path, option)
    for folder in ("examples", "evaluation", "benchmarks")
    for path in sorted((ROOT / folder).glob("*.py"))
    for option in re.findall(r'add_argument\(\s*"(--output\w*)"', path.read_text(encoding="utf-8"))
]


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


@pytest.mark.parametrize(("path", "option"), TOOLS, ids=[path.stem for path, _ in TOOLS])
def test_every_tool_looks_at_its_place_before_the_work(path, option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(path), option, "/proc/result"])
    monkeypatch.syspath_prepend(path.parent)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2 and "'/proc/result' cannot be written" in capsys.readouterr().err


def test_there_are_tools_that_write():
    assert len(TOOLS) >= 9


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


def test_a_folder_that_fails_with_one_of_its_files_names_itself_and_the_reason(tmp_path):
    with pytest.raises(OSError, match=f"^Could not write {tmp_path}: File too large. Make room.$"):
        with writing(tmp_path, " Make room."), writing(tmp_path / "file"):
            raise RuntimeError("File too large")


def test_a_mistake_of_ours_is_not_called_a_failed_write(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path / "x"):
        raise KeyError("x")

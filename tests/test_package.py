"""What a user installs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import diffusers_text_nfdm


ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"


def test_the_wheel_holds_every_module_recipe_and_template(tmp_path):
    # From a copy: building leaves files behind.
    command = f"cp -r {ROOT}/setup.py {ROOT}/README.md {ROOT}/LICENSE {ROOT}/src {tmp_path}"
    subprocess.run(command, shell=True, check=True)
    build = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to(SOURCE))
        for path in (SOURCE / "diffusers_text_nfdm").rglob("*")
        if path.is_file() and path.suffix in (".py", ".yaml", ".md")
    }
    assert len(expected) > 40
    assert expected <= packed


def test_every_public_name_exists():
    for name in diffusers_text_nfdm.__all__:
        assert getattr(diffusers_text_nfdm, name) is not None

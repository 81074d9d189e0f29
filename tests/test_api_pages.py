"""The pages of the API: what is public is explained, and on them (make docs)."""

import importlib.util
from pathlib import Path

import pytest

import diffusers_text_nfdm


ROOT = Path(__file__).parents[1]
NAMES = [name for name in diffusers_text_nfdm.__all__ if not name.startswith("__")]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_of_its_own(name):
    thing = getattr(diffusers_text_nfdm, name)
    assert (vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__ or "").strip()


@pytest.fixture(scope="module")
def build_api():
    pytest.importorskip("pdoc", reason="needs the extra docs, which is part of the extra test")
    specification = importlib.util.spec_from_file_location("build_api", ROOT / "docs" / "build_api.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_pages_have_every_public_name_and_are_built_without_a_warning(build_api, tmp_path):
    build_api.build(tmp_path)
    page = (tmp_path / "diffusers_text_nfdm.html").read_text(encoding="utf-8")
    for name in NAMES:
        assert f'id="{name}"' in page, name
    for module in build_api.MODULES:
        assert (tmp_path / f"{module.replace('.', '/')}.html").is_file()
    # Sections of docstrings are lists, not running text.
    assert "<h6" in page and "Args:</p>" not in page


def test_a_warning_is_an_error(build_api, tmp_path, monkeypatch):
    monkeypatch.setattr(build_api, "MODULES", ("diffusers_text_nfdm.version", "diffusers_text_nfdm.no_such_module"))
    with pytest.raises((ValueError, RuntimeError)):
        build_api.build(tmp_path)

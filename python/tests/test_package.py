"""Installing: the editable package finds its library, the build brings the DLPack header along."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import moetoken
from moetoken import _library

ROOT = Path(__file__).parents[2]


class Installed:
    """What importlib.metadata knows of an installation whose sources lie at `sources`."""

    def __init__(self, sources, editable, library):
        origin = {"url": Path(sources).as_uri(), "dir_info": {"editable": editable}}
        self.texts = {"direct_url.json": json.dumps(origin)}
        self.files = [Path("moetoken/other.so"), library]

    def read_text(self, name):
        return self.texts.get(name)


class InstalledFile:
    name = "libmoetoken_python.so"

    def locate(self):
        return Path("/site-packages/moetoken") / self.name


def test_where_an_editable_installation_has_its_library(monkeypatch):
    here = Path(moetoken.__file__).resolve().parents[1]
    found = Path("/site-packages/moetoken/libmoetoken_python.so")
    for sources, editable, expected in (
        (here, True, found),
        (here.parent, True, found),
        (here, False, None),  # an ordinary installation keeps its library beside its modules
        ("/somewhere/else", True, None),
    ):
        installed = Installed(sources, editable, InstalledFile())
        monkeypatch.setattr("importlib.metadata.distribution", lambda name, it=installed: it)
        assert _library._editable_library() == expected


def test_no_installation_at_all(monkeypatch):
    def missing(name):
        raise _library.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    assert _library._editable_library() is None


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_the_header_comes_along(tmp_path):
    """Configured as on a machine whose system folders have no DLPack header."""
    arguments = ["-S", ROOT / "python", "-B", tmp_path, "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF"]
    subprocess.run(["cmake", *arguments], check=True, capture_output=True)
    cache = (tmp_path / "CMakeCache.txt").read_text()
    place = cache.split("DLPACK_INCLUDE_DIR:PATH=")[1].splitlines()[0]
    assert Path(place).resolve() == ROOT / "third_party" / "dlpack" / "include"
    assert (Path(place) / "dlpack" / "dlpack.h").exists()

"""What tests of the daemon's data folder share."""

import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture
def data():
    """A folder's path, whose folder the daemon makes."""
    around = tempfile.mkdtemp(prefix="replayd-data-")
    yield pathlib.Path(around) / "data"
    shutil.rmtree(around)

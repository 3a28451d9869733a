"""Runs the notebooks from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import ROOT

NOTEBOOKS = sorted((ROOT / "python/notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["audit", "daily_statistics", "private_training"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not there")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not there")
    pytest.importorskip("ipykernel", reason="ipykernel is not there")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "saved without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()

"""The notebooks of the docs run from top to bottom, here with few rounds and without Flower's processes."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
SMALL = {"first-run": "ROUNDS, SEEDS = 2, 1", "cell": "ROUNDS, SEEDS = 2, 1"}
SMALL |= {"flower": "ROUNDS, DEVICES, RUN_FLOWER = 2, 2, False"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(notebook, 4)
    (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = SMALL[notebook.stem]
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [cell.source for cell in book.cells if cell.cell_type == "code" and not cell.execution_count] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_small(notebook: Path) -> None:
    assert notebook.stat().st_size < 600_000

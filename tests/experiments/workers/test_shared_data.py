from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from signfade.data import Dataset
from signfade.experiments.workers.shared_data import open_shared, share


def test_text_and_its_clients_are_shared_as_they_are(tmp_path: Path) -> None:
    tokens = torch.arange(12).reshape(4, 3)
    text = Dataset(tokens, tokens + 1, tokens[:2], tokens[:2] + 1, 13, "text", clients=np.array([7, 7, 2, 5]))
    again = open_shared(share(text, tmp_path / "text"))
    assert (again.classes, again.name, again.train_x.dtype) == (13, "text", torch.int64)
    for part, array in text.arrays().items():
        assert (again.arrays()[part] == array).all(), part
    again.train_x[0] = 0  # a page of our own
    assert (np.load(tmp_path / "text" / "train_x.npy") == tokens.numpy()).all()

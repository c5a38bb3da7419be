"""The store of publications: what is written is read back, and what is damaged, foreign or unwritable is a sentence."""

import errno
import hashlib
import json
import os
import re
from typing import NamedTuple

import numpy as np
import pytest

from rookery.islands.migration import Published, hyper_of
from rookery.islands.store import Header, Publication, Store, StoreError, encode
from rookery.types import Genotype


def publication(island: int = 1, generation: int = 10, fitness: float = 2.5) -> Publication:
    arrays = {
        "fitness": np.array([fitness], np.float32),
        "weights": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
        "flag": np.array([True]),
    }
    return Publication(Header(island, generation, 100 * generation, fitness, {"tau": 0.01}), arrays)


def test_a_publication_is_read_back_with_its_types(tmp_path):
    store, written = Store(tmp_path / "publications"), publication()
    name = store.publish(written)
    assert re.fullmatch(r"0001-000000010-[0-9a-f]{16}\.pub", name)
    read = store.read(name)
    assert read.header == store.header(name) == written.header
    assert type(read.header) is Header
    assert list(read.arrays) == list(written.arrays)
    for key, array in written.arrays.items():
        assert read.arrays[key].dtype == array.dtype
        assert np.array_equal(read.arrays[key], array)
    assert not read.arrays["weights"].flags.writeable
    assert os.listdir(store.folder) == [name]  # no temporary file is left


class Hyper(NamedTuple):
    rate: np.ndarray
    limit: np.ndarray


def test_a_member_with_an_infinite_constant_is_published(tmp_path):
    genotypes = Genotype((), Hyper(np.array([0.5]), np.array([np.inf])), None)
    hyper = hyper_of(Published(genotypes, np.ones(1), np.zeros((1, 0))), 0)
    assert hyper == {"rate": 0.5}
    store, written = Store(tmp_path), publication()
    name = store.publish(written._replace(header=written.header._replace(hyper=hyper)))
    assert store.header(name).hyper == hyper


def test_publishing_the_same_again_writes_nothing_and_other_content_is_rejected(tmp_path):
    store = Store(tmp_path)
    name = store.publish(publication())
    before = (tmp_path / name).stat().st_mtime_ns
    assert store.publish(publication()) == name
    assert (tmp_path / name).stat().st_mtime_ns == before
    with pytest.raises(StoreError, match="island 1 has published generation 10 with other content before"):
        store.publish(publication(fitness=3.0))
    assert os.listdir(tmp_path) == [name]
    reader = Store(tmp_path / "none", read_only=True)
    assert reader.publish(publication()) == name
    assert not (tmp_path / "none").exists()
    with pytest.raises(StoreError, match="with other content"):
        Store(tmp_path, read_only=True).publish(publication(fitness=3.0))


@pytest.mark.parametrize("direction", [1, -1])
def test_the_newest_publication_is_that_of_the_latest_generation_whatever_the_clocks(tmp_path, direction):
    """Nodes whose clocks are years ahead or behind leave files whose times are in another order, or in the future."""
    store = Store(tmp_path)
    names = [store.publish(publication(island, generation)) for island in (1, 2) for generation in (10, 20, 30)]
    for place, name in enumerate(names):
        moment = 2_000_000_000 + direction * (place - 2) * 500_000_000
        os.utime(tmp_path / name, (moment, moment))
    assert list(store.newest(0, 3000)[0]) == [names[2], names[5]]
    assert list(store.newest(0, 2999)[0]) == [names[1], names[4]]
    assert list(store.newest(2, 1000)[0]) == [names[0]]


def test_every_flipped_byte_and_every_cut_is_detected(tmp_path):
    store = Store(tmp_path)
    name = store.publish(publication())
    content = (tmp_path / name).read_bytes()
    for share in (0.0, 0.05, 0.3, 0.6, 0.99):
        (tmp_path / name).write_bytes(content[: int(share * len(content))])
        with pytest.raises(StoreError, match=rf"^the publication {name} was left out: .*[a-z]\.$"):
            store.read(name)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        (tmp_path / name).write_bytes(bytes(changed))
        with pytest.raises(StoreError):
            store.read(name)


@pytest.mark.parametrize("damage", ["1e999", "[" * 100_000, "null", "'"])
def test_a_header_with_any_damage_is_left_out(tmp_path, damage):
    store = Store(tmp_path)
    store.publish(publication())
    name = store.publish(publication(generation=20))
    content = (tmp_path / name).read_text(errors="surrogateescape")
    changed = re.sub(r'"experience": \d+', f'"experience": {damage}', content)
    (tmp_path / name).write_text(changed, errors="surrogateescape")
    found, notes = store.newest(0, 10_000)
    assert [header.generation for header in found.values()] == [10]
    assert len(notes) == 1


def test_nothing_but_numbers_is_stored(tmp_path):
    arrays = {"fitness": np.array([1.0]), "object": np.array([{}], dtype=object)}
    with pytest.raises(ValueError, match="object has the type object"):
        encode(Publication(Header(0, 1, 1, 1.0, {}), arrays))
    content = encode(publication())
    first, text, data = content.split(b"\n", 2)
    description = json.loads(text)
    description["leaves"][0]["dtype"] = "object"
    body = json.dumps(description).encode() + b"\n" + data
    digest = hashlib.sha256(body).hexdigest()
    name = f"0001-000000010-{digest[:16]}.pub"
    (tmp_path / name).write_bytes(f"rookery publication 1 {digest}\n".encode() + body)
    with pytest.raises(StoreError, match="an array has the type 'object'"):
        Store(tmp_path).read(name)


def test_a_name_cannot_leave_the_folder_and_links_are_not_followed(tmp_path):
    (tmp_path / "outside.pub").write_bytes(encode(publication()))
    elsewhere, store = Store(tmp_path / "elsewhere"), Store(tmp_path / "publications")
    link = elsewhere.publish(publication())
    store.folder.mkdir()
    (store.folder / link).symlink_to(elsewhere.folder / link)
    assert store.newest(0, 10_000) == ({}, [])
    digits = "0001-000000010-0123456789abcdef.pub/.."
    for name in ("../outside.pub", "/etc/passwd", "0001-000000010-zzzz.pub", digits, link):
        with pytest.raises(StoreError, match="its name is not that of a publication"):
            store.read(name)


def test_a_renamed_publication_is_left_out(tmp_path):
    store = Store(tmp_path)
    name = store.publish(publication())
    other = name.replace("0001", "0002", 1)
    (tmp_path / name).rename(tmp_path / other)
    for read in (store.header, store.read):
        with pytest.raises(StoreError, match="its numbers are not those of its name"):
            read(other)


def test_the_newest_of_each_other_island_with_at_most_the_same_experience(tmp_path):
    store = Store(tmp_path)
    names = {(i, g): store.publish(publication(i, g)) for i in range(3) for g in (10, 20, 30)}
    assert [*store.newest(0, 2000)[0]] == [names[1, 20], names[2, 20]]
    assert [*store.newest(0, 1999)[0]] == [names[1, 10], names[2, 10]]
    assert store.newest(0, 999) == ({}, [])
    assert [*store.newest(1, 9999)[0]] == [names[0, 30], names[2, 30]]
    (tmp_path / names[2, 20]).write_bytes(b"")
    found, notes = store.newest(0, 2000)
    assert [*found] == [names[1, 20], names[2, 10]]
    assert notes[0].startswith(f"the publication {names[2, 20]} was left out: ")
    assert len(notes) == 1


def test_a_full_disk_or_a_file_in_place_of_the_store_is_a_sentence(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Store(tmp_path / "publications")
    store.check()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot be written to \(No space left on device\), so this island publishes"):
        store.publish(publication())
    assert os.listdir(store.folder) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used by islands"):
        Store(tmp_path / "file").check()


def test_a_file_system_without_renames_is_a_sentence(tmp_path, monkeypatch):
    def rename(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    store = Store(tmp_path / "publications")
    store.check()
    assert os.listdir(store.folder) == []
    monkeypatch.setattr(os, "replace", rename)
    with pytest.raises(StoreError, match=r"cannot be used by islands \(Operation not permitted\); give a --run-dir on"):
        store.check()
    monkeypatch.setattr(os, "replace", lambda *_: None)
    with pytest.raises(StoreError, match="does not replace a file by renaming another"):
        store.check()

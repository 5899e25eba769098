import gzip
import pickle
import struct

import numpy as np
import pytest
from convoy.data import load


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@pytest.fixture
def mnist(rng):
    return [rng.integers(0, 256, (n, 28, 28)).astype("uint8") for n in (6, 4)], [
        rng.integers(0, 10, n).astype("uint8") for n in (6, 4)
    ]


@pytest.fixture
def cifar(rng):
    sizes = [3, 2, 2, 2, 2, 4]
    return [
        (rng.integers(0, 256, (n, 3072)).astype("uint8"), rng.integers(0, 10, n).tolist())
        for n in sizes
    ]


def idx(array):
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + (array.tobytes())
    )


def check_mnist(data, mnist):
    (x_train, x_test), (y_train, y_test) = mnist
    np.testing.assert_array_equal(data.train[0][..., 0], x_train)
    np.testing.assert_array_equal(data.train[1], y_train)
    np.testing.assert_array_equal(data.test[0][..., 0], x_test)
    np.testing.assert_array_equal(data.test[1], y_test)
    assert data.train[1].dtype == np.int32


def write_idx(folder, mnist, write, mark="-"):
    folder.mkdir(parents=True, exist_ok=True)
    (x_train, x_test), (y_train, y_test) = mnist
    for stem, array in (
        (f"train-images{mark}idx3-ubyte", x_train),
        (f"train-labels{mark}idx1-ubyte", y_train),
        (f"t10k-images{mark}idx3-ubyte", x_test),
        (f"t10k-labels{mark}idx1-ubyte", y_test),
    ):
        write(folder, stem, idx(array))


def plain(folder, stem, content):
    (folder / stem).write_bytes(content)


def zipped(folder, stem, content):
    (folder / f"{stem}.gz").write_bytes(gzip.compress(content))


def write_python(folder, cifar):
    folder.mkdir()
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    for name, (pixels, labels) in zip(names, cifar, strict=True):
        batch = {b"data": pixels, b"labels": labels, b"batch_label": b"x"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def test_mnist_as_npz(tmp_path, mnist):
    (x_train, x_test), (y_train, y_test) = mnist
    np.savez(tmp_path / "mnist.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    check_mnist(load("mnist", tmp_path), mnist)


@pytest.mark.parametrize(
    ("name", "place", "write", "mark"),
    [
        ("mnist", ".", plain, "-"),
        ("mnist", "MNIST/raw", zipped, "-"),
        ("fashion_mnist", "fashion-mnist", zipped, "."),
    ],
)
def test_idx_files(tmp_path, mnist, name, place, write, mark):
    write_idx(tmp_path / place, mnist, write, mark)
    check_mnist(load(name, tmp_path), mnist)


def check_cifar(data, cifar):
    pixels = np.concatenate([part for part, _ in cifar[:5]])
    expected = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(data.train[0], expected)
    assert data.train[1].tolist() == [label for _, labels in cifar[:5] for label in labels]
    assert data.test[1].tolist() == cifar[5][1]


def test_cifar10_as_python_batches(tmp_path, cifar):
    write_python(tmp_path / "cifar-10-batches-py", cifar)
    check_cifar(load("cifar10", tmp_path), cifar)
    check_cifar(load("cifar10", tmp_path / "cifar-10-batches-py"), cifar)


def test_cifar10_as_binary_batches(tmp_path, cifar):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    for name, (pixels, labels) in zip(names, cifar, strict=True):
        rows = np.concatenate([np.array(labels, "uint8")[:, None], pixels], 1)
        (folder / name).write_bytes(rows.tobytes())
    check_cifar(load("cifar10", tmp_path), cifar)


def test_cifar100_in_both_forms(tmp_path, rng):
    pixels = rng.integers(0, 256, (3, 3072)).astype("uint8")
    fine, coarse = [99, 0, 50], [1, 2, 3]
    python, binary = tmp_path / "a" / "cifar-100-python", tmp_path / "b" / "cifar-100-binary"
    for folder in (python, binary):
        folder.mkdir(parents=True)
    rows = np.concatenate([np.array([coarse, fine], "uint8").T, pixels], 1)
    for part in ("train", "test"):
        batch = {b"data": pixels, b"fine_labels": fine, b"coarse_labels": coarse}
        (python / part).write_bytes(pickle.dumps(batch))
        (binary / f"{part}.bin").write_bytes(rows.tobytes())
    for folder in (tmp_path / "a", tmp_path / "b"):
        data = load("cifar100", folder)
        assert data.train[1].tolist() == fine
        assert data.test[0].shape == (3, 32, 32, 3)


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_python_batch_is_never_run(tmp_path, cifar):
    folder, victim = tmp_path / "cifar-10-batches-py", tmp_path / "victim"
    write_python(folder, cifar)
    batch = {b"data": Attack(victim), b"labels": [0]}
    (folder / "data_batch_3").write_bytes(pickle.dumps(batch))
    with pytest.raises(
        ValueError, match=r"data_batch_3 is not a Python batch .* _?io\.open, which"
    ):
        load("cifar10", tmp_path)
    assert not victim.exists()


def damage_idx(folder, mnist):
    write_idx(folder, mnist, plain)
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(mnist[0][1])[:-1])


def drop_idx(folder, mnist):
    write_idx(folder, mnist, plain)
    (folder / "train-labels-idx1-ubyte").unlink()


def cut_gzip(folder, mnist):
    write_idx(folder, mnist, zipped)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])


def no_idx(folder, mnist):
    write_idx(folder, mnist, plain)
    (folder / "train-images-idx3-ubyte").write_bytes(b"GIF89a")


def strange_label(folder, mnist):
    mnist[1][0][2] = 77
    write_idx(folder, mnist, plain)


def fewer_labels(folder, mnist):
    mnist[1][1] = mnist[1][1][:-1]
    write_idx(folder, mnist, plain)


def wrong_npz(folder, mnist):
    np.savez(folder / "mnist.npz", x_train=mnist[0][0])


def damaged_npz(folder, mnist):
    (folder / "mnist.npz").write_bytes(b"PK\x03\x04 and then nothing")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            damage_idx,
            r"t10k-images-idx3-ubyte is damaged: its header announces 3136 .* has 3135\. Download",
        ),
        (drop_idx, r"train-labels-idx1-ubyte is missing\. Add it\.$"),
        (cut_gzip, r"train-images-idx3-ubyte.gz is damaged: .*\. Download it again\.$"),
        (no_idx, r"is not an idx file of bytes: it begins with b'GIF8'\. Download it again\.$"),
        (
            strange_label,
            r"train labels of mnist go from .* to 77, .*\. Download the dataset again\.$",
        ),
        (fewer_labels, r"mnist has 4 test images, but 3 labels\. Download the dataset again\.$"),
        (wrong_npz, r"has no array .*y_train.*\. Download it again\.$"),
        (damaged_npz, r"mnist.npz is damaged: .*\. Download it again\.$"),
    ],
)
def test_damaged_files_are_named(tmp_path, mnist, damage, message):
    damage(tmp_path, mnist)
    with pytest.raises(ValueError, match=message):
        load("mnist", tmp_path)


def test_a_missing_batch_and_a_cut_one_are_named(tmp_path, cifar):
    folder = tmp_path / "cifar-10-batches-py"
    write_python(folder, cifar)
    (folder / "data_batch_2").write_bytes(b"\x80\x02}")
    with pytest.raises(ValueError, match="data_batch_2 is not a Python batch of cifar10"):
        load("cifar10", tmp_path)
    (folder / "data_batch_2").unlink()
    with pytest.raises(ValueError, match="data_batch_2 is missing"):
        load("cifar10", tmp_path)

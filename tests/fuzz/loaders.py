"""Coverage-guided fuzzing of everything that reads a file: `make fuzz` for all loaders, or one by name:

    python tests/fuzz/loaders.py npz -max_total_time=60

A loader may take any bytes or refuse them with an InputError of one line. Anything else is a finding, and atheris
leaves the bytes that led there in a file called crash-….
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["rwalk"]):
    import little
    from rwalk import Fleet, IncrementalClassifier, InputError, MemorySpec, Training, learner, model_file
    from rwalk.atomic_files import checked_json, parse_json, with_checksum
    from rwalk.classifier import closed_form_files, texts
    from rwalk.classifier import network as classifier_network
    from rwalk.data import datasets
    from rwalk.data.datasets.images import FORMATS, form_of, read_image
    from rwalk.data.datasets.official import read_idx, unpickled
    from rwalk.data.large_files import form_from_json
    from rwalk.guard import Guard
    from rwalk.guard import guard_file as guard_files
    from rwalk.studies import Study, checkpoint
    from rwalk.studies.executor import NOTE, Context, begun_fleets
    from rwalk.studies.reference_cache import ReferenceCache
    from rwalk.studies.shared_folder import read_outcomes
    from rwalk.studies.specs import reference_of
    from rwalk.studies.study_folder import Store, read_rows
    from rwalk.studies.work_claims import Claims

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.torch
import torch
from PIL import Image
from torch import nn

FOLDER = Path(tempfile.mkdtemp())
STREAM = little.stream()
RUN = little.study(seeds=1).runs[0]
REFERENCE = reference_of(RUN, 0)
REFERENCES = ReferenceCache(Context("cpu", {RUN.stream: STREAM}, None, None), FOLDER / "cache")


def fleet() -> Fleet:
    chosen = learner("rwalk", MemorySpec(per_class=2))
    return Fleet(STREAM, little.Network, [chosen], [0], Training(epochs=1, batch=16))


def saved() -> tuple[bytes, bytes]:
    """The record and the tensors of a sound checkpoint."""
    trained = fleet()
    trained.train(checkpoints=checkpoint.Checkpointer(FOLDER, "run", every=1))
    record = max(FOLDER.glob("*.json"))
    return record.read_bytes(), record.with_suffix(".safetensors").read_bytes()


RECORD, TENSORS = saved()
VICTIM = fleet()


def signed(content: object, packed: bytes) -> Path:
    """A checkpoint with sound checksums, so that its content is read."""
    record = FOLDER / "0000-00000001.json"
    record.with_suffix(".safetensors").write_bytes(packed)
    if isinstance(content, dict):
        content["tensors"] = {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    record.write_text(with_checksum(content) if isinstance(content, dict) else json.dumps(content))
    return record


def record(data: bytes) -> None:
    """The record of a checkpoint."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        path = FOLDER / "0000-00000002.json"
        path.write_bytes(data)
    else:
        path = signed(content, TENSORS)
    checkpoint.load(path, VICTIM, "run")


def tensors(data: bytes) -> None:
    """The tensors of a checkpoint."""
    checkpoint.load(signed(checked_json(RECORD)[0], data), VICTIM, "run")


def sealed_again(kind: str, data: bytes) -> Path:
    """A file whose checksum is right: `data` are its record and, after a zero byte, its tensors.

    Bytes that cannot be split like this are the whole file.
    """
    path = FOLDER / "sealed.safetensors"
    record, _, packed = data.partition(b"\0")
    try:
        held, text = safetensors.torch.load(packed), record.decode()
        metadata = model_file.metadata(kind, text, held)
    except Exception:  # anything may be wrong with these bytes, and that is no finding
        path.write_bytes(data)
    else:
        safetensors.torch.save_file(held, path, metadata)
    return path


def held(data: bytes, name: str) -> Path:
    """A file with these bytes in a folder of its own."""
    folder = FOLDER / f"with-{name}"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def sound(data: bytes) -> str | bytes:
    """A JSON object with a right checksum, so that its content is read; other bytes as they are."""
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
        if isinstance(content, dict):
            return with_checksum(content)
    return data


def claim(data: bytes) -> None:
    """Another process's claim: it is respected until it is seen not to change."""
    path = held(data, "run.0")
    assert Claims(path.parent, lease=60).take("run") is None


def outcome(data: bytes) -> None:
    """What another process that joined has trained."""
    for each in (data, sound(data)):
        path = held(b"", "outcome.json")
        path.write_bytes(each.encode() if isinstance(each, str) else each)
        read_outcomes(path, (RUN,))


def reference(data: bytes) -> None:
    """The accuracies of a reference model."""
    text = sound(data)
    file = REFERENCES._file(REFERENCE, without=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    REFERENCES._read(REFERENCE, without=False)


def note(data: bytes) -> None:
    """The runs of a fleet, beside its checkpoints."""
    begun_fleets(held(data, NOTE).parent.parent, [RUN])


def text(data: bytes) -> None:
    """A classifier of texts."""
    IncrementalClassifier.load(sealed_again(texts.TextClassifier._formats[0], data))


def guard(data: bytes) -> None:
    """A guard."""
    path = sealed_again(guard_files.FORMAT, data)
    model = little_model()
    with warnings.catch_warnings(action="ignore"):
        Guard.load(path, model, torch.optim.SGD(model.parameters(), lr=0.1)).detach()


def classifier(data: bytes) -> None:
    """A classifier."""
    IncrementalClassifier.load(sealed_again(classifier_network.FORMAT, data), network=little.Network)


def little_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def taken_apart(path: Path) -> list[bytes]:
    """A sound file, as `sealed_again` takes it and as it is."""
    metadata, held = model_file.read(path)
    return [metadata["record"].encode() + b"\0" + safetensors.torch.save(held), path.read_bytes()]


def guards() -> list[bytes]:
    seeds = []
    for method in ("rwalk", "ewc"):
        model = little_model()
        trained = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
        model(torch.ones(2)).square().sum().backward()
        trained.optimizer.step()
        trained.consolidate([model(torch.ones(2)).square().sum()] if method == "ewc" else None)
        trained.save(FOLDER / "guard.safetensors")
        trained.detach()
        seeds += taken_apart(FOLDER / "guard.safetensors")
    return seeds


def classifiers() -> list[bytes]:
    x = np.eye(2, dtype=np.float32)
    learned = IncrementalClassifier(network=little.Network, method="rwalk", memory=1, epochs=1, random_state=0)
    learned.fit(np.concatenate([x, x]), ["a", "b", "a", "b"]).save(FOLDER / "classifier.safetensors")
    return taken_apart(FOLDER / "classifier.safetensors")


def rows(data: bytes) -> None:
    """runs.jsonl."""
    path = FOLDER / "runs.jsonl"
    path.write_bytes(data)
    read_rows(path)


def study(data: bytes) -> None:
    """study.json."""
    store = Store(FOLDER / "study")
    store.folder.mkdir(exist_ok=True)
    store.study_file.write_bytes(data)
    Study.of(store.study())


def npz(data: bytes) -> None:
    """An array file."""
    path = FOLDER / "arrays.npz"
    path.write_bytes(data)
    datasets.load(str(path))


def table(data: bytes) -> None:
    """A CSV file, as it is learned and as it is read again by a model of other files."""
    path = FOLDER / "table.csv"
    path.write_bytes(data)
    with warnings.catch_warnings(action="ignore"):
        for _ in FORM.read(path, labelled=True):
            pass
        datasets.load(str(path))


def packed(data: bytes) -> None:
    """A compressed CSV file."""
    path = FOLDER / "table.csv.gz"
    path.write_bytes(data)
    with warnings.catch_warnings(action="ignore"):
        datasets.load(str(path))


def parquet(data: bytes) -> None:
    """A Parquet file."""
    path = FOLDER / "table.parquet"
    path.write_bytes(data)
    datasets.load(str(path))


def image(data: bytes) -> None:
    """An image of any kind."""
    for suffix in FORMATS:
        path = FOLDER / f"image{suffix}"
        path.write_bytes(data)
        with suppress(InputError):
            form_of([path])
            read_image(path)


def form(data: bytes) -> None:
    """How files become inputs, from a model's note."""
    with suppress(ValueError, LookupError, TypeError, ArithmeticError, AttributeError):
        form_from_json(parse_json(data))


def sums(data: bytes) -> None:
    """A classifier in closed form."""
    IncrementalClassifier.load(sealed_again(closed_form_files.FORMAT, data))


def pickle(data: bytes) -> None:
    """CIFAR's batches, after their checksum."""
    # C's unpickler allocates a memo of any size in the file. Only the official bytes ever get there, so let it.
    if b"r" in data:
        return
    unpickled(data, "data_batch_1")


def idx(data: bytes) -> None:
    """MNIST's files, after their checksum."""
    read_idx(data, "train-images")


TABLE = b"age,colour,price,label\n1,red,$2,a\n2,blue,$3,b\n3,red,$1,a\n4,,$4,b\n"
(FOLDER / "first.csv").write_bytes(TABLE)
FORM = datasets.TableEncoder.fit(FOLDER / "first.csv", reading=datasets.Reading(missing="fill"))


def seeds_of_texts() -> list[bytes]:
    learned = IncrementalClassifier(size=16).fit(np.array(["a b", "b c", "c d", "d a"] * 3), ["x", "y"] * 6)
    learned.save(FOLDER / "texts.safetensors")
    return taken_apart(FOLDER / "texts.safetensors")


def outcomes() -> list[bytes]:
    matrix = [[0.5, None], [0.25, 1]]
    found = {"accuracy": {"single": matrix, "multi": matrix}, "made": {}, "stopped": None}
    return [json.dumps({"runs": [RUN.hash()], "outcomes": [found]}).encode()]


def closed_forms() -> list[bytes]:
    x = np.random.default_rng(0).normal(size=(12, 2))
    seeds = []
    for warm_up in (4, 100):
        learned = IncrementalClassifier(size=4, warm_up=warm_up).fit(x, ["a", "b"] * 6)
        learned.save(FOLDER / "sums.safetensors")
        seeds += taken_apart(FOLDER / "sums.safetensors")
    return seeds


def images() -> list[bytes]:
    pixels, seeds = Image.new("RGBA", (3, 2), (1, 2, 3, 4)), []
    for kind, mode in (("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("TIFF", "L"), ("BMP", "RGB"), ("PPM", "RGB")):
        file = io.BytesIO()
        pixels.convert(mode).save(file, kind)
        seeds.append(file.getvalue())
    return seeds


def tables() -> bytes:
    file = io.BytesIO()
    columns = {"x": [1.0, 2.0, 3.0, 4.0], "label": ["a", "b", "a", "b"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def arrays() -> bytes:
    packed = io.BytesIO()
    np.savez(packed, x=np.zeros((6, 2), np.float32), y=np.arange(6) % 2)
    return packed.getvalue()


LOADERS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "record": (record, lambda: [json.dumps(checked_json(RECORD)[0]).encode(), RECORD]),
    "tensors": (tensors, lambda: [TENSORS]),
    "guard": (guard, guards),
    "classifier": (classifier, classifiers),
    "sums": (sums, closed_forms),
    "text": (text, seeds_of_texts),
    "rows": (rows, lambda: [b'{"hash": "x", "method": "pi", "lam": 1.0, "seed": 0}\n']),
    "study": (study, lambda: [json.dumps(little.study(seeds=1).describe().to_json()).encode()]),
    "claim": (
        claim,
        lambda: [json.dumps({"owner": "a", "beats": 0}).encode()],
    ),
    "outcome": (outcome, outcomes),
    "reference": (
        reference,
        lambda: [json.dumps({"run": REFERENCE.hash(), "single": 0.5, "multi": 1.0}).encode()],
    ),
    "note": (note, lambda: [json.dumps([RUN.hash()]).encode()]),
    "npz": (npz, lambda: [arrays()]),
    "table": (
        table,
        lambda: [
            TABLE,
            TABLE.replace(b",", b";").replace(b"$", b"1.000,"),
            TABLE.replace(b"$", b"1%").decode().encode("utf-16"),
            b",x,class\n0,\xe4,a\n1,5,b\n2,1e9,a\n",
        ],
    ),
    "packed": (packed, lambda: [gzip.compress(TABLE)]),
    "parquet": (parquet, lambda: [tables()]),
    "image": (image, images),
    "form": (
        form,
        lambda: [json.dumps(FORM.to_json()).encode(), b'{"kind": "images", "shape": [3, 8, 8], "size": null}'],
    ),
    "pickle": (pickle, lambda: [b"\x80\x02}q\x00U\x04dataq\x01]s."]),
    "idx": (idx, lambda: [b"\x00\x00\x08\x01\x00\x00\x00\x02ab"]),
}


def main() -> None:
    name, *options = sys.argv[1:]
    load, seeds = LOADERS[name]
    corpus = FOLDER / f"corpus-{name}"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)

    def one(data: bytes) -> None:
        try:
            load(data)
        except InputError as error:
            assert "\n" not in str(error), f"more than a line: {error}"

    atheris.Setup([sys.argv[0], str(corpus), "-max_len=20000", *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""IncrementalClassifier as users meet it: parameters, messages, weights of generators, scikit-learn's tools."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV
from torch.utils.data import DataLoader, TensorDataset

from command_line import Rwalk, refused
from rwalk import IncrementalClassifier, IncrementalRegressor, InputError


def rows(n: int = 240, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, n)
    return draw.normal(size=(n, 5)) + 3 * draw.normal(size=(3, 5))[y], y


def test_unpickled_and_explicit_defaults_cause_no_warning() -> None:
    x, y = rows(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for clf in (
            pickle.loads(pickle.dumps(IncrementalClassifier())),
            IncrementalClassifier(learning_rate=0.001),
        ):
            clf.set_params(size=10).partial_fit(x, y)


def test_partial_fit_uses_the_weights_of_an_iterator() -> None:
    x, y = rows()
    weight = np.random.default_rng(1).uniform(0.1, 3, len(x))
    start = IncrementalClassifier(size=20).fit(x, y).fresh()
    whole = start.fresh().partial_fit(x, y, sample_weight=weight)
    halves = [(x[:100], y[:100]), (x[100:], y[100:])]
    triples = [(x[:100], y[:100], weight[:100]), (x[100:], y[100:], weight[100:])]
    for each in (
        start.fresh().partial_fit(iter(halves), sample_weight=weight),
        start.fresh().partial_fit(iter(triples)),
    ):
        np.testing.assert_allclose(each.coef_, whole.coef_, atol=1e-8)
    for wrong in (weight[:-1], np.append(weight, 1)):
        with pytest.raises(InputError, match="give one per example"):
            start.fresh().partial_fit(iter(halves), sample_weight=wrong)


@pytest.mark.parametrize("params", [{"size": 10}, {"method": "rwalk", "memory": 2, "epochs": 1}])
def test_messages_name_no_private_class(params: dict[str, Any]) -> None:
    x, y = rows(60)
    clf = IncrementalClassifier(**params).partial_fit(x, y)
    with pytest.raises(InputError, match="IncrementalClassifier is expecting 5 features"):
        clf.predict(x[:, :3])


def test_message_about_another_estimators_file_names_public_classes(tmp_path: Path) -> None:
    IncrementalClassifier(size=10).fit(*rows(60)).save(tmp_path / "clf")
    with pytest.raises(InputError, match="it holds a IncrementalClassifier, not a IncrementalRegressor"):
        IncrementalRegressor.load(tmp_path / "clf")


def test_set_params_after_fit_is_refused_where_it_cannot_act() -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=10).fit(x, y)
    clf.set_params(size=7)
    for attempt in (lambda: clf.predict(x), lambda: clf.partial_fit(x, y)):
        with pytest.raises(InputError, match="size=7 was set after"):
            attempt()
    assert clf.fit(x, y).coef_.shape[1] == 5 + 7


def test_load_refuses_a_parameter_that_the_features_were_made_without(tmp_path: Path) -> None:
    x, y = rows()
    IncrementalClassifier(size=10).fit(x, y).save(tmp_path / "clf")
    with pytest.raises(InputError, match="size=7 cannot be given"):
        IncrementalClassifier.load(tmp_path / "clf", size=7)
    assert IncrementalClassifier.load(tmp_path / "clf", size=10).size == 10


@pytest.mark.parametrize("params", [{"size": 10}, {"method": "rwalk", "memory": 2, "epochs": 1}])
def test_predict_log_proba_is_the_logarithm(params: dict[str, Any]) -> None:
    x, y = rows(60)
    clf = IncrementalClassifier(**params).partial_fit(x, y)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(x)), clf.predict_proba(x), atol=1e-12)


def test_examples_are_counted_over_all_calls() -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=10).partial_fit(x[:100], y[:100]).partial_fit(x[100:], y[100:])
    assert clf.n_samples_seen_ == 240
    assert clf.class_count_.tolist() == np.bincount(y).tolist()


def test_memory_total_smaller_than_the_number_of_classes_is_kept_to() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(100, 4)), np.arange(100) % 10
    clf = IncrementalClassifier(method="rwalk", memory_total=5, epochs=1)
    for task in ([0, 1, 2], [3, 4, 5, 6], [7, 8, 9]):
        some = np.isin(y, task)
        clf.partial_fit(x[some], y[some])
        assert sum(len(kept) for kept in clf.exemplars_.values()) <= 5
    assert set(clf.exemplars_) >= {7, 8, 9}


def test_scikit_learns_tools_work_around_it() -> None:
    x, y = rows()
    search = GridSearchCV(IncrementalClassifier(size=10), {"ridge": [1e-3, 10.0]}, cv=2, n_jobs=2).fit(x, y)
    assert search.best_score_ > 0.8
    calibrated = CalibratedClassifierCV(IncrementalClassifier(size=10), cv=2).fit(x, y)
    assert calibrated.score(x, y) > 0.8
    page = IncrementalClassifier(size=10, class_weight="<own>")._repr_html_()
    assert "IncrementalClassifier" in page and "<own>" not in page
    assert "href=" not in page, "there is no address that documentation is published at"


def test_unknown_parameter_is_refused_under_the_public_name() -> None:
    with pytest.raises(TypeError, match=r"^IncrementalClassifier\(\) got an unexpected keyword argument 'rigde'"):
        IncrementalClassifier(rigde=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_with_channels_last_are_read_as_images(channels: int) -> None:
    images = np.random.default_rng(0).random((40, 20, 18, channels))
    y = np.arange(40) % 2
    last, first = (IncrementalClassifier(size=20).fit(x, y) for x in (images, np.moveaxis(images, 3, 1)))
    assert last.input_shape_ == first.input_shape_ == (channels, 20, 18)
    for clf in (last, first):
        for x in (images, np.moveaxis(images, 3, 1)):
            np.testing.assert_array_equal(clf.decision_function(x), first.decision_function(images))


def test_regressor_reads_data_frames_as_the_classifier_does(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    y = draw.normal(size=200)
    frame = pd.DataFrame(
        {"id": range(200), "price": draw.normal(size=200), "city": np.where(y > 0, "Rome", "Oslo")}
    )
    with pytest.warns(UserWarning, match="column 'id' is not learned"):
        model = IncrementalRegressor(size=50).partial_fit(frame[:100], y[:100])
    model.partial_fit(frame[100:150], y[100:150])
    assert model.score(frame[150:], y[150:]) > 0.5
    model.save(tmp_path / "model")
    loaded = IncrementalRegressor.load(tmp_path / "model")
    swapped = frame[["city", "price"]]
    np.testing.assert_array_equal(loaded.predict(swapped), model.predict(frame))
    more = loaded.fresh().partial_fit(frame[:50], y[:50]).merge(loaded)
    with pytest.warns(UserWarning, match="feature map"):
        more.forget(frame[:50], y[:50])
    np.testing.assert_allclose(more.predict(swapped), model.predict(swapped), atol=1e-6)
    with pytest.raises(InputError, match="row 3 has no value in column 'price': fill it in"):
        model.predict(swapped.mask(pd.DataFrame({"price": [False, False, True] + [False] * 197, "city": False})))
    with pytest.raises(InputError, match="other columns"):
        model.merge(IncrementalRegressor(size=50).partial_fit(frame[["price"]], y))
    with pytest.raises(InputError, match="texts alone: give vectors"):
        IncrementalRegressor().fit(list(frame["city"]), y)
    gaps = frame[["price"]].mask(frame[["price"]] > 1.5)
    for make in (IncrementalClassifier, IncrementalRegressor):
        with pytest.raises(InputError, match="has no value in column 'price': fill it in"):
            make(size=50).fit(gaps, y > 0)


def test_data_frame_with_text_is_learned_as_from_a_file(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 200)
    frame = pd.DataFrame(
        {
            "id": range(200),
            "price": draw.normal(size=200),
            "city": pd.Categorical(np.where(draw.random(200) < 0.9, np.where(y, "Rome", "Oslo"), "Paris")),
        }
    )
    with pytest.warns(UserWarning, match="column 'id' is not learned"):
        clf = IncrementalClassifier(size=50).partial_fit(frame[:150], y[:150])
    assert clf.score(frame[150:], y[150:]) > 0.8
    assert clf.feature_names_in_.tolist() == ["price", "city"] and clf.n_features_in_ == 2
    clf.save(tmp_path / "clf.safetensors")
    loaded = IncrementalClassifier.load(tmp_path / "clf.safetensors")
    swapped = frame[["city", "price"]]
    np.testing.assert_array_equal(loaded.predict(swapped), clf.predict(frame))
    np.testing.assert_array_equal(clf.predict(clf.form_.transform(frame)), clf.predict(frame))  # type: ignore[union-attr]
    with pytest.raises(InputError, match="row 3 has no value in column 'city': fill it in"):
        clf.predict(swapped.mask(pd.DataFrame({"city": [False, False, True] + [False] * 197, "price": False})))
    with pytest.raises(InputError, match="no column 'price'"):
        clf.predict(frame[["city"]])
    apart = IncrementalClassifier(size=50).partial_fit(frame[["price"]], y)
    with pytest.raises(InputError, match=r"cannot be merged|other columns"):
        clf.merge(apart)


def test_every_parameter_is_described_once() -> None:
    for kind in (IncrementalClassifier, IncrementalRegressor):
        for name in inspect.signature(kind).parameters:
            assert len(re.findall(rf"(?m)^    {name}  ", kind.__doc__ or "")) == 1, name


def test_fit_of_the_command_line_takes_parameters_of_the_classifier(rwalk: Rwalk, tmp_path: Path) -> None:
    table, out = tmp_path / "table.csv", tmp_path / "clf.safetensors"
    table.write_text("a,label\n" + "".join(f"{n},{'yes' if n > 30 else 'no'}\n" for n in range(60)))
    assert rwalk("fit", table, "--out", out, "--half-life", 40, "--class-weight", "balanced").code == 0
    clf = IncrementalClassifier.load(out)
    assert (clf.half_life, clf.ledger, clf.class_weight) == (40.0, False, "balanced")
    refused(rwalk("fit", table, "--continue", out, "--ledger"), "drop --ledger")


def test_images_of_pillow_and_in_files_are_learned_like_their_pixels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 20, 20), dtype=np.uint8)
    pillow, y = [image.fromarray(each) for each in pixels], [0, 1] * 4
    paths = [tmp_path / f"{place}.png" for place in range(8)]
    for path, each in zip(paths, pillow, strict=True):
        each.save(path)
    expected = IncrementalClassifier(size=10).fit(pixels[:, None], y).decision_function(pixels[:, None])
    for given in (pillow, paths, np.array(paths, dtype=object)):
        clf = IncrementalClassifier(size=10).fit(given, y)
        np.testing.assert_array_equal(clf.decision_function(given), expected)
        np.testing.assert_array_equal(clf.decision_function([each.convert("RGB") for each in pillow]), expected)
    with pytest.raises(InputError, match=r"image 0 has 20 × 20 pixels, image 1 has 10 × 20 pixels: resize"):
        IncrementalClassifier().fit([pillow[0], pillow[1].crop((0, 0, 10, 20))], [0, 1])
    with pytest.raises(InputError, match=r"pathlib\.Path"):
        IncrementalClassifier().fit([str(path) for path in paths], y)


@pytest.mark.parametrize("factor", [1e-90, 1e90])
def test_weights_of_extreme_scale_change_nothing(factor: float) -> None:
    x, y = rows()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(x))
    plain, scaled = (
        IncrementalClassifier(size=20).fit(x, y, sample_weight=weight * each) for each in (1.0, factor)
    )
    np.testing.assert_allclose(scaled.decision_function(x), plain.decision_function(x), atol=1e-8)


def test_loader_of_torch_is_learned_batch_by_batch() -> None:
    x, y = rows(120)
    loader = DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=50)
    learned = IncrementalClassifier(size=20).partial_fit(loader)
    expected = IncrementalClassifier(size=20).partial_fit(iter([(x[:50], y[:50]), (x[50:100], y[50:100]),
                                                                (x[100:], y[100:])]))  # fmt: skip
    np.testing.assert_array_equal(learned.decision_function(x), expected.decision_function(x))


@pytest.mark.parametrize(
    ("x", "y", "weight", "message"),
    [
        (np.ones((4, 2)), [0, 1, 0, 1], [1, 1, 1, 1e-300], "a sample_weight is beyond 1e-100 … 1e\\+100"),
        (np.ones((4, 2)), [0, 1, 0, 1], [1, 1, 1, 1e300], "a sample_weight is beyond"),
        (np.full((4, 2), 1e-200), [0, 1, 0, 1], None, "all inputs are smaller than 1e-100"),
        (np.array([["a", "b"], ["c", "d"]]), [0, 1], None, "an input is text: give numbers, a list of texts"),
        (np.ma.masked_greater(np.arange(8.0).reshape(4, 2), 6), [0, 1, 0, 1], None, "inputs have masked values"),
        (np.array([[0.0], [np.inf]]), [0, 1], None, "contains infinity: leave such values out"),
        ([np.ones((8, 8, 3)), np.ones((9, 8, 3))], [0, 1], None, r"the shapes \[8, 8, 3\] and \[9, 8, 3\]"),
    ],
)
def test_inputs_that_would_be_lost_are_refused(x: Any, y: Any, weight: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        IncrementalClassifier().fit(x, y, sample_weight=weight)


def test_targets_that_are_texts_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="could not convert string to float"):
        IncrementalRegressor().fit(np.ones((2, 2)), np.array(["a", "b"]))


def test_labels_of_two_kinds_in_one_list_are_refused() -> None:
    with pytest.raises(InputError, match="numbers and strings: give labels of one type"):
        IncrementalClassifier(size=20).fit([[0.0], [1.0]], [1, "a"])


def test_one_image_is_no_list_of_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    clf = IncrementalClassifier(size=20).fit(images, np.arange(20) % 2)
    with pytest.raises(InputError, match=r"X is one input of shape \[1, 8, 8\]: give a list"):
        clf.predict(images[0])


def test_images_of_other_channels_are_refused_by_their_shape() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    clf = IncrementalClassifier(size=20).fit(images[:, None, :, :, 0], np.arange(20) % 2)
    with pytest.raises(InputError, match=r"inputs have shape \[8, 8, 3\]: give \[1, 8, 8\], as learned"):
        clf.predict(images)


def test_sparse_tensors_and_frames_are_learned_like_dense_ones() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = rows(60)
    x[x < 0] = 0
    expected = IncrementalClassifier(size=20).fit(x, y).decision_function(x)
    sparse = csr_array(x)
    for given in (torch.tensor(x).to_sparse(), pandas.DataFrame.sparse.from_spmatrix(sparse), sparse):
        clf = IncrementalClassifier(size=20).fit(given, y)
        np.testing.assert_allclose(clf.decision_function(given), expected)


def test_html_links_to_the_documentation_that_the_package_names(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Message()
    named["Project-URL"] = "Documentation, https://docs.example/rwalk"
    monkeypatch.setattr("rwalk.classifier.base.metadata", lambda package: named)
    assert 'href="https://docs.example/rwalk"' in IncrementalClassifier()._repr_html_()
    assert 'href="https://docs.example/rwalk"' in IncrementalRegressor()._repr_html_()


@pytest.mark.parametrize("case", ["forget", "regressor", "predict", "learn", "unused", "table", "network"])
def test_warnings_point_to_the_line_that_called(case: str) -> None:
    import pandas

    x, y = rows(120)
    clf = IncrementalClassifier(size=20).fit(x, y)
    regressor = IncrementalRegressor(size=20).fit(x, y)
    table = pandas.DataFrame(
        {"id": range(1000, 1120), "a": x[:, 0], "city": np.where(x[:, 1] > 0, "Rome", "Oslo")}
    )
    with pytest.warns(UserWarning) as caught:
        if case == "forget":
            clf.forget(x[:5], y[:5])
        elif case == "regressor":
            regressor.forget(x[:5], y[:5])
        elif case == "predict":
            clf.predict(x + 1e6)
        elif case == "learn":
            regressor.partial_fit(x + 1e6, y)
        elif case == "unused":
            IncrementalClassifier(memory=3).fit(x, y)
        elif case == "table":
            IncrementalClassifier(size=20).fit(table, y)
        else:
            IncrementalClassifier(method="ewc", epochs=1).partial_fit(x, y)
    assert {warning.filename for warning in caught} == {__file__}


def test_verbose_prints_a_line_per_call(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = rows(60)
    IncrementalClassifier(size=20, verbose=True).partial_fit(x, y).partial_fit(x[:9], y[:9])
    IncrementalRegressor(size=20, verbose=True).fit(x, y)
    told = ["60 examples learned, 60 in all", "9 examples learned, 69 in all", "60 examples learned, 60 in all"]
    assert capsys.readouterr().out.splitlines() == told


def test_messages_are_short_and_name_what_is_missing() -> None:
    x, y = rows(60)
    clf = IncrementalClassifier(size=20).fit(x, y)
    with pytest.raises(
        InputError, match=r"^Expected 2D array, got 1D array instead\. Reshape your data"
    ) as caught:
        clf.predict(x[0])
    assert "[" not in str(caught.value)
    with pytest.raises(InputError, match="labels are missing: give y, or an iterator"):
        clf.partial_fit([(x, y), (x, y)])
    with pytest.raises(InputError, match="merge takes another IncrementalClassifier, not int"):
        clf.merge(3)  # type: ignore[arg-type]


def test_class_weight_of_no_class_is_a_warning() -> None:
    x, y = rows(60)
    with pytest.warns(UserWarning, match="class_weight has a weight for '1', which is no class so far"):
        IncrementalClassifier(size=20, class_weight={"1": 5.0}).fit(x, y).predict(x)

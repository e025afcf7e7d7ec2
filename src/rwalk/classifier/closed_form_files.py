"""Sums, map and solution of a closed form on disk. Everything read is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.classifier import encoders, estimator_files
from rwalk.classifier.estimator_files import Contents, check_tensors
from rwalk.closed_form.calibration import Certainty, Familiar
from rwalk.closed_form.examples import Examples
from rwalk.closed_form.feature_sums import Counted
from rwalk.closed_form.features import KINDS, FeatureMap, fingerprint, tensors_of
from rwalk.closed_form.features.backbone import BackboneFeatures
from rwalk.closed_form.ledger import Ledger
from rwalk.closed_form.model import Model
from rwalk.closed_form.solution import Rule
from rwalk.closed_form.solve import Solution
from rwalk.closed_form.sums import Statistics
from rwalk.errors import InputError
from rwalk.escaping import shown
from rwalk.model_file import expect, is_whole

PUBLIC = {"ClosedFormClassifier": "IncrementalClassifier"}  # the public names of estimators
FORMAT, FIRST = "rwalk.closed_form/2", "rwalk.closed_form/1"

# Every tensor of a map by its dimensions: equal letters are equal sizes, figures are themselves.
DIMENSIONS = {
    "vectors": {"centre": "d", "scale": "d", "slopes": "dr", "offsets": "r", "waves": "df", "mixing": "dm"},
    "images": {"filters": "kcss", "offsets": "k", **dict.fromkeys(("faint", "grid", "mirrored", "floor"), "")},
}
SUMS = {"gram": "t", "total": "D", "cross": "DC", "targets": "C", "squares": "C", "weight": "", "counts": "C"}
RANGE = {"low": "i", "high": "i"}
FIT = {"weights": "DC", "bias": "C"}
HELD = ("x", "y", "weight")
WHOLE = ("counts", "grid")
MOMENTS_ROUNDING = 1e-3  # of the largest: by so much second moments may miss being positive
MOST_FACTORED = 4096  # features whose moments are factored when a file is read: less than a second


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────


def contents(model: Model, classes: bool = True) -> Contents:
    """A model, solved."""
    tensors: dict[str, Tensor] = {}
    counted, fit = model.counted, model.stored_fit()
    for place, each in enumerate(model.held):
        tensors |= {f"held.{place}.{field}": getattr(each, field) for field in HELD}
    if counted is not None:
        tensors |= {f"sums.{key}": tensor for key, tensor in counted.statistics.compact().items()}
        tensors["sums.squared"] = counted.squared
        if counted.range is not None:
            tensors |= {f"range.{key}": each for key, each in zip(RANGE, counted.range, strict=True)}
    used = counted if fit is None else fit.counted
    if used is not None:
        tensors |= {f"map.{key}": tensor for key, tensor in tensors_of(used.map).items()}
        if used.shift is not None:
            tensors["sums.shift"] = used.shift
    record: dict[str, Any] = {
        "seed": model.recipe.seed,
        "map": None if used is None else _about_map(used.map),
        "held": len(model.held),
        "time": None if counted is None else [counted.unit, counted.clock, counted.origin],
        "fit": None,
    }
    if fit is not None:
        solution = fit.solution
        tensors |= {"fit.weights": solution.weights, "fit.bias": solution.bias}
        record["fit"] = {**asdict(fit.rule), "lam": solution.ridge}
        if classes:
            record["fit"]["certainty"] = list(astuple(fit.certainty))
            if fit.familiar is not None:
                tensors["fit.known"] = fit.familiar.known
    return record, {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}


def _about_map(features: FeatureMap) -> dict[str, Any]:
    about: dict[str, Any] = {"kind": features.kind, "fingerprint": fingerprint(features)}
    if isinstance(features, BackboneFeatures):
        about["lift"] = features.lift
    return about


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────


def checked_params(
    record: Mapping[str, Any], estimator: str, names: Sequence[str], given: Mapping[str, Any], fixed: Sequence[str]
) -> dict[str, Any]:
    """The parameters written, replaced by those given."""
    if record["estimator"] != estimator:
        held, asked = (PUBLIC.get(each, str(each)) for each in (record["estimator"], estimator))
        raise InputError(f"it holds a {held}, not a {asked}: load it as one")
    stored = dict(record["params"])
    if stored.pop("backbone", "frozen") != "frozen":
        raise InputError("its network was trained by backbone='first call', which is no more: learn it again")
    params = estimator_files.checked_params(stored, names, given)
    for name, value in given.items():
        if name in fixed and name in stored and stored[name] != value:
            now = type(value).__name__ if isinstance(value, nn.Module) else repr(value)
            raise InputError(
                f"its features were made with {name}={stored[name]!r}, so {name}={now} cannot be "
                "given: leave it out"
            )
    if "network" not in params:
        raise InputError("its features are a network, which no file holds: pass it again, load(path, network=…)")
    return params


def check_encoder(encoder: Any, stored: Any) -> None:
    """Refuse an encoder that is not the one of the file."""
    if (stored is None) != (encoder is None):
        which = "was learned without an encoder: leave it out"
        if stored is not None:
            name = shown(stored["name"], 80)
            which = f"needs its encoder {name!r}, which no file holds: pass it again, load(path, encoder=…)"
        raise InputError(f"it {which}")
    if stored is not None:
        encoders.check_same(encoder, stored)


def without_ledger(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Ledger | None]:
    """The other tensors of a file, and the ledger if it holds one."""
    left = dict(tensors)
    salts, marks = left.pop("ledger.salts", None), left.pop("ledger.marks", None)
    if salts is None or marks is None:
        expect(salts is None and marks is None, "the ledger")
        return left, None
    expect(
        salts.dtype == torch.uint8 and salts.ndim == 2 and len(salts) > 0 and salts.shape[1] == 16, "the ledger"
    )
    expect(marks.dtype == torch.int64 and marks.ndim == 2 and marks.shape[1] == 3, "the ledger")
    expect(bool(((marks[:, 0] >= 0) & (marks[:, 0] < len(salts)) & (marks[:, 2] > 0)).all()), "the ledger")
    return left, Ledger.of(salts, marks)


def restore(model: Model, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Put the contents of a file into a model that has learned nothing."""
    expect(type(record["seed"]) is int and 0 <= record["seed"] < 2**63, "the seed")
    model.recipe = replace(model.recipe, seed=record["seed"])
    left = dict(tensors)
    model.held = [_held(model, left, place) for place in range(_whole(record["held"]))]
    if record["map"] is None:
        expect(not left, "the list of tensors")
        return
    features = _restored_map(model, record["map"], left)
    size = sum(features.blocks)
    known = {"D": size, "C": model.columns, "t": size * (size + 1) // 2}
    shift = left.pop("sums.shift", None)
    if shift is not None:
        check_tensors({"shift": shift}, {"shift": "D"}, known)
        shift = shift.to(model.device)
    if not model.held:
        model.take(features)
        assert model.counted is not None
        _restore_sums(model.counted, record, left, known)
        model.counted.shift = shift
    if (stored := record.get("fit")) is not None:
        own = _taken(left, "fit.", FIT)
        expect(own["weights"].shape == (size, model.columns) and own["bias"].shape == (model.columns,), "the fit")
        expect(bool(own["weights"].isfinite().all()) and not bool(own["bias"].isnan().any()), "the fit")
        rule = Rule(stored["solver"], stored["ridge"], stored["share"])
        lam, (sharpness, prior) = stored["lam"], stored.get("certainty", (1.0, 0.0))
        expect(all(type(each) is float and math.isfinite(each) for each in (lam, sharpness, prior)), "the fit")
        expect(lam > 0 and sharpness > 0, "the fit")
        weights, bias = (own[name].to(model.device, torch.float64) for name in FIT)
        sample = left.pop("fit.known", None)
        if sample is not None:
            check_tensors({"known": sample}, {"known": "m3"}, {"3": 3})
            expect(len(sample) > 0 and bool((sample.diff(dim=0) >= 0).all()), "what is known")
        measured = Certainty(sharpness, prior), None if sample is None else Familiar(sample)
        model.use_stored_fit(features, shift, rule, Solution(weights, bias, lam), measured)
    expect(not left, "the list of tensors")


def _restore_sums(
    counted: Counted, record: Mapping[str, Any], left: dict[str, Tensor], known: Mapping[str, int]
) -> None:
    names = {**SUMS}
    if "sums.root" in left:  # few examples: a factor of the Gram matrix
        names["root"] = "mD"
        del names["gram"]
    sums = _taken(left, "sums.", names)
    check_tensors(sums, names, known, WHOLE)
    expect(bool((sums["counts"] >= 0).all()) and float(sums["weight"]) >= 0, "the counts")
    counted.statistics = Statistics.of(sums, counted.device)
    _check_moments(counted.statistics.symmetric().cpu(), sums["total"], float(sums["weight"]))
    squared = left.pop("sums.squared", sums["weight"].clone())  # two sums, which grow apart
    check_tensors({"squared": squared}, {"squared": ""}, {})
    counted.squared = squared.to(counted.device)
    if "range.low" in left:
        ends = _taken(left, "range.", RANGE)
        check_tensors(ends, RANGE, {})
        counted.range = ends["low"], ends["high"]
    # The first format had no units: there, weights count as repetitions.
    unit, clock, origin = record.get("time") or (1, int(sums["counts"].sum()), 0.0)
    expect(type(unit) is int and unit >= -1 and type(origin) is float and math.isfinite(origin), "the weights")
    counted.unit, counted.clock, counted.origin = unit, _whole(clock), origin


def _taken(left: dict[str, Tensor], prefix: str, names: Mapping[str, str]) -> dict[str, Tensor]:
    return {name: left.pop(f"{prefix}{name}") for name in names}


def _check_moments(gram: Tensor, total: Tensor, weight: float) -> None:
    """Refuse an upper triangle that no features can have: Σ w φφᵀ, with the constant 1 among φ, is positive.

    All pairs of features are checked; all features together where that is quick. The tolerance covers sums of
    float32 products.
    """
    if not weight:
        return
    square = torch.diag_embed(torch.cat([torch.tensor([weight], dtype=torch.float64), gram.diagonal()]))
    square[0, 1:], square[1:, 1:] = total, gram
    least = float(MOMENTS_ROUNDING * square.diagonal().max())
    expect(bool((square.diagonal() >= -least).all()), "gram")
    scale = square.diagonal().clamp(min=least).sqrt()
    square /= scale[:, None]
    square /= scale
    expect(float(square.abs().max()) <= 1 + MOMENTS_ROUNDING, "gram")
    if len(square) <= MOST_FACTORED:
        square.diagonal().add_(MOMENTS_ROUNDING)
        _, failed = torch.linalg.cholesky_ex(square, upper=True)
        expect(not failed, "gram")


def checked_targets(targets: Any, flat: Any) -> tuple[int, bool]:
    expect(type(flat) is bool and _whole(targets) > 0 and not (flat and targets != 1), "the number of targets")
    return targets, flat


def _restored_map(model: Model, stored: Any, left: dict[str, Tensor]) -> FeatureMap:
    kind = model.recipe.kind(model.shape)
    expect(stored["kind"] == kind, "the kind of features")
    features: FeatureMap
    if kind == "backbone":
        example = torch.zeros(1, *model.shape, device=model.device)
        assert isinstance(model.recipe.features, nn.Module)
        lift = _whole(stored.get("lift", 0))  # the first versions had none
        expect(lift <= left["sums.total"].numel(), "the lift")
        features = BackboneFeatures(model.recipe.features, example, lift)
    else:
        names = dict(DIMENSIONS[kind])
        if "map.floor" not in left:  # version 0.2.0 had none
            names.pop("floor", None)
        parts = _taken(left, "map.", names)
        known = {"d": math.prod(model.shape)} if kind == "vectors" else {"c": model.shape[0]}
        check_tensors(parts, names, known, WHOLE)
        expect(bool((parts["scale"] > 0).all()) if kind == "vectors" else float(parts["faint"]) > 0, "a scale")
        expect(kind == "vectors" or 0 < int(parts["grid"]) <= min(model.shape[1:]), "the grid")
        expect(0 < float(parts.get("floor", 1)) < 1000, "a scale")
        expect(kind == "vectors" or float(parts["mirrored"]) in (0.0, 0.5), "whether images are mirrored")
        features = KINDS[kind](**parts)
    if fingerprint(features) != stored["fingerprint"]:
        raise InputError("the features are others than those it was trained with: give the same network")
    return features


def _held(model: Model, left: dict[str, Tensor], place: int) -> Examples:
    x, y, weight = (left.pop(f"held.{place}.{field}") for field in HELD)
    expect(tuple(x.shape[1:]) == model.shape and x.dtype == model.dtype and bool(x.isfinite().all()), "an input")
    expect(
        len(x) == len(y) == len(weight) and weight.dtype == torch.float64 and bool((weight > 0).all()), "a weight"
    )
    labels = y.dtype == torch.int64 and y.ndim == 1 and bool(((y >= 0) & (y < model.columns)).all())
    numbers = y.dtype == torch.float64 and y.ndim == 2 and y.shape[1] == model.columns and bool(y.isfinite().all())
    expect(labels or numbers, "a target")
    return Examples(x, y, weight)


def _whole(number: Any) -> int:
    expect(is_whole(number, 0, 2**31), "a number")
    return int(number)

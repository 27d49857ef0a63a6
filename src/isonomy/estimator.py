"""A scikit-learn classifier that is trained by any method of the package.

This is the only module that imports scikit-learn; `isonomy.FairFederatedClassifier` imports it when
it is first used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy import algorithms, api, api_data
from isonomy.core.capabilities import LearnsFront
from isonomy.core.values import Coded, Frame, Plain, Values, coded, values_of
from isonomy.data.arrow_values import frame_of, is_arrow
from isonomy.data.frames import to_arrow
from isonomy.deploy.predictions import Predictions
from isonomy.deploy.predictor import Predictor
from isonomy.errors import ConfigError, RunError, missing_extra

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise ConfigError(missing_extra("FairFederatedClassifier", "scikit-learn", "sklearn")) from None

LABEL, CLIENT, ONE = "label", "client", "all rows"


class FairFederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that clients train together with a method of the package.

    Args:
        method: The name of an algorithm (`isonomy ls algorithms`).
        options: The algorithm's options, such as {"zeta": 0.3}.
        model: The name of a network, or a table with its options.
        rounds: The number of communication rounds.
        local: Local work, such as {"lr": 0.1, "epochs": 1}.
        validation: The share of each client's rows that are kept for validation.
        preference: The point on the front, for a method that learns one: a share per objective.
        data: Options of the data, such as {"bins": {"age": [25, 60]}, "scale": "none"}.
        settings: Other tables of the config, such as {"cohort": {"size": 10}}.
        keep: Whether to use a model that the method's verdict withholds; otherwise `fit` raises.
        random_state: The seed of splits, initialisation and training.

    `fit` takes the client of each row as `clients` (all rows are at one client without it) and the
    protected groups as `sensitive_features`: a column, or a frame or dict with several. They are
    not features, unless they are also in X. Numbers are standardised and categories become
    indicators, from counts and sums of the clients, as for your own tables.

    After `fit`, `record_` holds what the run measured on validation rows, and `classes_` the
    classes. A method that trains a model for each client needs `clients` to predict.

    >>> import numpy
    >>> x = numpy.random.default_rng(0).normal(size=(90, 2))
    >>> made = FairFederatedClassifier("fedavg", model="linear", rounds=3)
    >>> made.fit(x, x[:, 0] > 0, clients=["a", "b", "c"] * 30).predict(x[:2]).shape
    (2,)
    """

    def __init__(
        self,
        method: str = "pffl",
        *,
        options: Mapping[str, Any] | None = None,
        model: str | Mapping[str, Any] = "mlp",
        rounds: int = 50,
        local: Mapping[str, Any] | None = None,
        validation: float = 0.1,
        preference: Sequence[float] | None = None,
        data: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        keep: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.options = options
        self.model = model
        self.rounds = rounds
        self.local = local
        self.validation = validation
        self.preference = preference
        self.data = data
        self.settings = settings
        self.keep = keep
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, clients: Any = None, sensitive_features: Any = None
    ) -> FairFederatedClassifier:
        """Train on rows of several clients; returns the classifier itself."""
        columns = self._features(X, reset=True)
        rows = len(next(iter(columns.values())))
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        target = column_or_1d(check_array(y, ensure_2d=False, dtype=None), warn=True)
        check_classification_targets(target)
        encoder = LabelEncoder().fit(target)
        self.classes_ = encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError("y has one class only; a classifier needs at least two classes.")
        _same_length(rows, len(target), "y")
        groups = _groups(sensitive_features, rows)
        self._renamed = _free_names(columns, [LABEL, CLIENT, *groups])
        table = {self._renamed[name]: values for name, values in columns.items()}
        table |= dict(groups)
        table[LABEL] = Plain(encoder.transform(target))
        table[CLIENT] = _client_names(clients, rows)
        numbers = [name for name in table if name not in (LABEL, CLIENT, *groups)]
        numbers = [name for name in numbers if _is_real(table[name])]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if isinstance(self.random_state, int | np.integer):
            seed = int(self.random_state)
        given = api_data.federation(
            Frame(table),
            label=LABEL,
            client=CLIENT,
            protected=list(groups),
            task="classification",
            **{
                "numeric": numbers,
                "fractions": [1 - self.validation, self.validation, 0.0],
                **(self.data or {}),
            },
        )
        self._train(given, seed)
        return self

    def _train(self, given: Any, seed: int) -> None:
        options = {"name": self.method, **(self.options or {})}
        table = {"name": self.model} if isinstance(self.model, str) else dict(self.model)
        front = isinstance(algorithms.make(self.method, dict(self.options or {})), LearnsFront)
        config = api.make_config(
            **{
                "data": "adult",  # replaced by `given`
                "algorithm": options,
                "model": table,
                "rounds": self.rounds,
                "local": dict(self.local or {}),
                "seed": seed,
                "front": {"rays": 100 if front else 0},
                "excess": "none",
                "evaluate": {
                    "every": self.rounds,
                    "split": "validation" if self.validation else "train",
                    "bootstrap": 0,
                    "scores": "never",
                },
                **(self.settings or {}),
            }
        )
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            self.record_ = api.run(config, place, data=given, keep=self.keep)
            verdict = self.record_.verdict
            if not (place / "model").exists():
                raise RunError(
                    f"the verdict of '{self.method}' is '{(verdict or {}).get('status')}', so it "
                    f"gives no model ({(verdict or {}).get('text')}); change its options, or set "
                    "keep=True to use the model anyway."
                )
            self._files = {
                str(path.relative_to(place)): path.read_bytes()
                for path in sorted(place.rglob("*"))
                if path.is_file() and path.relative_to(place).parts[0] != "checkpoint"
            }
        self.clients_ = tuple(dict.fromkeys(map(str, self.record_.clients["name"])))
        self._predictors: dict[str | None, Predictor] = {}

    def _predictor(self, client: str | None) -> Predictor:
        """The model of one client, or of all; read from the run's files when first used."""
        if client not in self._predictors:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in self._files.items():
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                chosen = tuple(self.preference or ())
                self._predictors[client] = api.predictor(folder, client, preference=chosen)
        return self._predictors[client]

    def __getstate__(self) -> dict[str, Any]:
        """What is saved: the run's files, and not the networks made from them."""
        state = dict(BaseEstimator.__getstate__(self))
        if "_predictors" in state:
            state["_predictors"] = {}
        return state

    def _predictions(
        self, X: Any, clients: Any, sensitive: Any
    ) -> tuple[int, list[tuple[Any, Predictions]]]:
        """The number of rows, and the predictions of each client's with their row numbers."""
        check_is_fitted(self)
        columns = self._features(X, reset=False)
        rows = len(next(iter(columns.values())))
        named = {self._renamed[name]: values for name, values in columns.items()}
        table = Frame({**named, **_groups(sensitive, rows)})
        if clients is None:
            try:
                return rows, [(np.arange(rows), self._predictor(None).predict_rows(table))]
            except RunError as error:
                if not self._personal():
                    raise
                raise ValueError(
                    f"'{self.method}' trains a model for each client; give the client of every "
                    f"row, predict(X, clients=...) ({error})"
                ) from None
        names = np.asarray(_client_names(clients, rows).listed())
        out = []
        for name in dict.fromkeys(names.tolist()):
            at = np.flatnonzero(names == name)
            client = name if self._personal() else None
            found = self._predictor(client).predict_rows(table.take(at))
            out.append((at, found))
        return rows, out

    def _personal(self) -> bool:
        model = self._predictor(self.clients_[0]).model
        return bool(model.algorithm.personal(model.server))

    def predict(self, X: Any, clients: Any = None, sensitive_features: Any = None) -> NDArray[Any]:
        """The predicted class of every row.

        `clients` are needed for a method that trains a model for each client, and
        `sensitive_features` if decisions depend on them.
        """
        rows, parts = self._predictions(X, clients, sensitive_features)
        out: NDArray[Any] = np.empty(rows, dtype=self.classes_.dtype)
        for at, found in parts:
            out[at] = self.classes_[[int(value) for value in found.values]]
        return out

    def predict_proba(
        self, X: Any, clients: Any = None, sensitive_features: Any = None
    ) -> NDArray[Any]:
        """The probability of each class [rows, classes], in the order of `classes_`."""
        rows, parts = self._predictions(X, clients, sensitive_features)
        out: NDArray[Any] = np.empty((rows, len(self.classes_)))
        for at, found in parts:
            if found.probabilities is None:
                raise AttributeError(
                    "the model's loss defines no probabilities; choose model={'name': ..., 'loss': "
                    "'cross_entropy'}."
                )
            order = np.argsort([int(label) for label in found.labels])
            values = found.probabilities[:, order].astype(np.float64)
            out[at] = values / values.sum(axis=1, keepdims=True)
        return out

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        clients: Any = None,
        sensitive_features: Any = None,
    ) -> float:
        """The accuracy on rows."""
        from sklearn.metrics import accuracy_score

        found = self.predict(X, clients=clients, sensitive_features=sensitive_features)
        return float(accuracy_score(y, found, sample_weight=sample_weight))

    def _features(self, X: Any, *, reset: bool) -> dict[str, Any]:
        """The columns of X; numbers of plain arrays are checked by scikit-learn."""
        if hasattr(X, "columns") or is_arrow(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            table = frame_of(to_arrow(X, "X"))
            if not len(table):
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            if not reset and set(table.names) != set(self._renamed):
                gone = [name for name in self._renamed if name not in table.names]
                raise ValueError(
                    f"X has no column {gone[:3]}, which the classifier was fitted with."
                )
            return {name: _plain(values) for name, values in table.columns.items()}
        X = validate_data(self, X, reset=reset, dtype="numeric", accept_sparse=False)
        numbers = np.asarray(X, dtype=np.float64)
        return {f"x{j}": Plain(np.ascontiguousarray(numbers[:, j])) for j in range(X.shape[1])}


def _plain(values: Values) -> Values:
    """A column of whole numbers as real numbers, so that it is always a number."""
    if isinstance(values, Plain) and values.values.dtype.kind in "iu":
        return Plain(values.values.astype(np.float64), values.null)
    return values


def _is_real(values: Values) -> bool:
    return isinstance(values, Plain) and values.values.dtype.kind == "f"


def _same_length(rows: int, found: int, what: str) -> None:
    if rows != found:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {rows} rows, "
            f"{what} has {found}."
        )


def _free_names(columns: Mapping[str, Any], taken: Sequence[str]) -> dict[str, str]:
    """Names for the features in the table, different from those of label, client and groups."""
    out: dict[str, str] = {}
    for name in columns:
        free = name
        while free in taken or free in out.values():
            free += " (feature)"
        out[name] = free
    return out


def _client_names(clients: Any, rows: int) -> Coded:
    """The client of every row, as text; one client for all rows if none is given."""
    if clients is None:
        return coded([ONE] * rows)
    names = [str(name) for name in np.asarray(clients, dtype=object).ravel().tolist()]
    _same_length(rows, len(names), "clients")
    return coded(names)


def _groups(given: Any, rows: int) -> dict[str, Values]:
    """Protected columns by name: of a frame, a dict, a column, or an array."""
    if given is None:
        return {}
    if hasattr(given, "columns") or is_arrow(given):
        found = dict(frame_of(to_arrow(given, "sensitive_features")).columns)
    elif isinstance(given, Mapping):
        found = {str(name): _group(values) for name, values in given.items()}
    else:
        array = np.asarray(given, dtype=object)
        named = getattr(given, "name", None)
        if array.ndim == 1:
            found = {str(named or "sensitive_feature_0"): _group(array)}
        else:
            found = {f"sensitive_feature_{j}": _group(array[:, j]) for j in range(array.shape[1])}
    for name, values in found.items():
        _same_length(rows, len(values), f"sensitive feature '{name}'")
    return found


def _group(values: Any) -> Values:
    plain = np.asarray(values, dtype=object).ravel().tolist()
    try:
        return values_of(plain)
    except ValueError:
        return coded([None if value is None else str(value) for value in plain])

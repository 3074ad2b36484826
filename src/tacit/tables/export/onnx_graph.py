"""A model as a graph for ONNX: an input for each column of the file, a label and chances, or a number, as outputs.

A number's input is a double, NaN where it is missing; a date is given as days since 1970 (UTC), or its part, as the
input's name says; a category's input is text without spaces around it. ONNX has no operator that hashes text, so a
model that reads free text is refused. What the schema refuses (a missing entry, an undeclared value) is not refused by
a graph: it counts as no value at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.tables.boosting.shapes import Shapes
from tacit.tables.columns import Category, Column, Number, Text, spellings
from tacit.tables.entries import MISSING
from tacit.tables.model import TableModel

_OPSET, _ML_OPSET = 17, 3


def write_onnx(model: TableModel, path: Path) -> None:
    """Write the graph to a new file."""
    try:
        import onnx
    except ImportError:
        raise ValueError("writing ONNX needs onnx; install it with: pip install 'tacit[onnx]'") from None
    if path.exists():
        raise ValueError(f"{path} exists; choose another file with --out.")
    if model.encoding.schema.texts:
        raise ValueError(
            f"{', '.join(model.encoding.schema.texts)}: ONNX has no operator that hashes text; export the model with "
            "--to sklearn."
        )
    onnx.save(_Graph(model).built(), str(path))


def input_name(name: str, column: Column) -> str:
    """Return the name of a column's input: of a date it says what to give."""
    if not isinstance(column, Number) or not column.notation.date:
        return name
    return f"{name} ({column.notation.part or 'days since 1970'})"


class _Graph:
    """A graph that grows node by node. Rows are the first axis of every value, and there are two axes."""

    def __init__(self, model: TableModel) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self.model, self._helper, self._numpy, self._types = model, helper, numpy_helper, TensorProto
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def built(self) -> Any:
        """Return the whole, checked."""
        import onnx

        features = self.model.encoding.schema.features
        inputs = [
            self._helper.make_tensor_value_info(
                input_name(name, column),
                self._types.STRING if isinstance(column, Category) else self._types.DOUBLE,
                [None, 1],
            )
            for name, column in features.items()
        ]
        scores = self._shapes() if isinstance(self.model.network, Shapes) else self._network()
        outputs = self._label(scores) if self.model.classes else self._unscaled(scores)
        graph = self._helper.make_graph(self._nodes, "tacit", inputs, outputs, self._constants)
        sets = [self._helper.make_opsetid("", _OPSET), self._helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
        found = self._helper.make_model(graph, opset_imports=sets, producer_name="tacit", ir_version=8)
        onnx.checker.check_model(found, full_check=True)
        return found

    def node(self, kind: str, *inputs: str, name: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        output = name or f"v{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(kind, list(inputs), [output], domain=domain, **attributes))
        return output

    def constant(self, values: Any, dtype: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(self._numpy.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def _code(self, name: str, column: Column) -> tuple[str, str]:
        """Return the compact code of a column, a double, and whether it is missing."""
        given = input_name(name, column)
        if isinstance(column, Category):
            code = self._place(given, column)
            return code, self.node("Equal", code, self.constant([[-1.0]], np.float64))
        assert isinstance(column, Number)
        gone = self.node("IsNaN", given)
        filled = 0.0 if column.missing in ("refuse", "own") else float(column.missing)
        number = self.node("Where", gone, self.constant([[filled]], np.float64), given)
        if column.missing not in ("refuse", "own"):
            gone = self.node("IsNaN", number)
        if column.bins:
            above = self.node("GreaterOrEqual", number, self.constant([column.bins], np.float64))
            code = self._sum(self.node("Cast", above, to=self._types.DOUBLE))
            return self.node("Where", gone, self.constant([[-1.0]], np.float64), code), gone
        if column.knots:
            low, width = np.array(column.knots[:-1]), np.diff(column.knots)
            shares = self.node("Sub", number, self.constant([low], np.float64))
            shares = self.node("Div", shares, self.constant([width], np.float64))
            return self._sum(self._clip(shares, 0.0, 1.0)), gone
        assert column.low is not None and column.high is not None
        inside = self._clip(number, column.low, column.high)
        shifted = self.node("Sub", inside, self.constant([[column.low / 2 + column.high / 2]], np.float64))
        return self.node("Div", shifted, self.constant([[column.high / 2 - column.low / 2]], np.float64)), gone

    def _place(self, given: str, column: Category) -> str:
        values = list(column.values or ())
        known = spellings(values)
        if column.missing == "own":
            known = {**dict.fromkeys(MISSING, -1), **known}
        elif column.missing != "refuse":
            known = {**dict.fromkeys(MISSING, values.index(str(column.missing))), **known}
        place = self.node(
            "LabelEncoder",
            given,
            domain="ai.onnx.ml",
            keys_strings=list(known),
            values_int64s=list(known.values()),
            default_int64=len(values),
        )
        return self.node("Cast", place, to=self._types.DOUBLE)

    def _clip(self, value: str, low: float, high: float) -> str:
        raised = self.node("Max", value, self.constant(low, np.float64))
        return self.node("Min", raised, self.constant(high, np.float64))

    def _sum(self, value: str) -> str:
        return self.node("ReduceSum", value, self.constant([1], np.int64), keepdims=1)

    def _network(self) -> str:
        parts = [self._expanded(name, column) for name, column in self.model.encoding.schema.features.items()]
        rows = self.node("Cast", self.node("Concat", *parts, axis=1), to=self._types.FLOAT)
        weights = {name: value.numpy() for name, value in self.model.network.state_dict().items()}
        if "0.weight" in weights:
            rows = self.node("Tanh", self._layer(rows, weights["0.weight"], weights["0.bias"]))
            return self._layer(rows, weights["2.weight"], weights["2.bias"])
        return self._layer(rows, weights["weight"], weights["bias"])

    def _layer(self, rows: str, weight: NDArray[Any], bias: NDArray[Any]) -> str:
        return self.node("Gemm", rows, self.constant(weight, np.float32), self.constant(bias, np.float32), transB=1)

    def _expanded(self, name: str, column: Column) -> str:
        code, gone = self._code(name, column)
        if isinstance(column, Number) and not column.bins:
            missing = self.node("Cast", gone, to=self._types.DOUBLE)
            if column.knots:
                knots = self.constant([np.arange(len(column.knots))], np.float64)
                apart = self.node("Abs", self.node("Sub", code, knots))
                code = self._clip(self.node("Sub", self.constant([[1.0]], np.float64), apart), 0.0, 1.0)
            code = self.node("Where", gone, self.constant([[0.0]], np.float64), code)
            return self.node("Concat", code, missing, axis=1) if column.missing == "own" else code
        assert not isinstance(column, Text)
        count = len(column.bins) + 1 if isinstance(column, Number) else _values(column)
        places = np.arange(-1 if column.missing == "own" else 0, count)
        found = self.node("Equal", code, self.constant([places], np.float64))
        return self.node("Cast", found, to=self._types.DOUBLE)

    def _shapes(self) -> str:
        shapes = self.model.network
        assert isinstance(shapes, Shapes)
        codes = []
        for axis, (name, column) in zip(shapes.axes, self.model.encoding.schema.features.items(), strict=True):
            whole = self.node("Cast", self._code(name, column)[0], to=self._types.INT64)
            shifted = self.node("Add", whole, self.constant([[int(axis.missing)]], np.int64))
            # An entry that the schema refuses has no cell; the graph must not read outside a shape.
            codes.append(self.node("Min", shifted, self.constant([[axis.size - 1]], np.int64)))
        first = self.node("Mul", self.node("Cast", codes[0], to=self._types.FLOAT), self.constant([[0.0]], np.float32))
        scores = self.node("Add", first, self.constant([shapes.get_buffer("intercept").numpy()], np.float32))
        for place, term in enumerate(shapes.terms):
            flat = ""
            for column_place, group in zip(term.places, term.groups, strict=True):
                inner = self.node("Gather", self.constant(group, np.int64), codes[column_place])
                scaled = flat and self.node("Mul", flat, self.constant([[max(group) + 1]], np.int64))
                flat = self.node("Add", scaled, inner) if flat else inner
            rows = self.node("Squeeze", flat, self.constant([1], np.int64))
            adds = self.node("Gather", self.constant(shapes.shape(place).numpy(), np.float32), rows)
            scores = self.node("Add", scores, adds)
        if len(self.model.classes) != 2:
            return scores
        return self.node("Concat", self.node("Mul", scores, self.constant([[0.0]], np.float32)), scores, axis=1)

    def _label(self, scores: str) -> list[Any]:
        self.node("Softmax", scores, name="probabilities", axis=1)
        best = self.node("ArgMax", scores, axis=1, keepdims=0)
        values = list(range(len(self.model.classes)))
        names = list(self.model.classes)
        self.node("LabelEncoder", best, name="label", domain="ai.onnx.ml", keys_int64s=values, values_strings=names)
        info = self._helper.make_tensor_value_info
        chances = info("probabilities", self._types.FLOAT, [None, len(values)])
        return [info("label", self._types.STRING, [None]), chances]

    def _unscaled(self, scores: str) -> list[Any]:
        target = self.model.encoding.schema.columns[self.model.encoding.schema.target]
        assert isinstance(target, Number) and target.low is not None and target.high is not None
        inside = self._clip(self.node("Cast", scores, to=self._types.DOUBLE), -1.0, 1.0)
        scaled = self.node("Mul", inside, self.constant([[(target.high - target.low) / 2]], np.float64))
        self.node("Add", scaled, self.constant([[(target.high + target.low) / 2]], np.float64), name="prediction")
        return [self._helper.make_tensor_value_info("prediction", self._types.DOUBLE, [None, 1])]


def _values(column: Column) -> int:
    assert isinstance(column, Category)
    return len(column.values or ()) + column.other

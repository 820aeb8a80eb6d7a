"""Files of exported policies. The ending of the file selects the format: safetensors for `understudy.Policy`, a
JavaScript module (policy.js), or an ONNX model, which needs the package onnx."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors_numpy

from control.storage.run_dir import atomic_file
from understudy.policy import CLIP_LIMIT, COMMAND_ROWS, KEY, ONE_HOT, check

Tensors = Mapping[str, np.ndarray]  # the weights of a policy by name, such as "layers.0.weight"
Header = Mapping[str, Any]  # the description of a policy: activations, actions, game, ... (`understudy.policy`)


def write(path: Path, tensors: Tensors, header: Header) -> None:
    """Write a policy to a file, in the format for the ending of ``path`` (`FORMATS`). The number of the format is added
    to the ``header``. Raises ValueError for numbers that are not finite, and OSError if the file cannot be written."""
    tensors = {name: np.ascontiguousarray(values, np.float32) for name, values in tensors.items()}
    check(header, tensors)
    format_number = 2 if "command" in tensors else 1  # readers of format 1 know no commands
    content = FORMATS[path.suffix]({"format": format_number, **header}, tensors)
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def _javascript(header: Header, tensors: Tensors) -> bytes:
    """Return a JavaScript module with the policy: the file policy.js, with values in place of its placeholders, which
    have the form ``/* NAME */ null``."""
    weights = {name: base64.b64encode(tensor.tobytes()).decode() for name, tensor in tensors.items()}
    values = {"header": header, "weights": weights, "command": _command(tensors), "limit": CLIP_LIMIT}
    text = Path(__file__).with_name("policy.js").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"/* {name} */ null", json.dumps(value))
    return text.encode()


def _command(tensors: Tensors) -> list[list[float]]:
    """Return the tensor ``command`` as a list of its rows (`COMMAND_ROWS`), which are empty without this tensor."""
    return tensors.get("command", np.empty((len(COMMAND_ROWS), 0))).tolist()  # type: ignore[no-any-return]  # the stubs return Any


def _onnx(header: Header, tensors: Tensors) -> bytes:
    """Return an ONNX model with the input ``observation [N, O]``, for agents that follow C commands also ``command [N,
    C]``, and the output ``action``, ``[N]`` int64 or ``[N, A]`` float32. N is the number of observations. The header
    and the tensor ``command`` are in the model's metadata as JSON."""
    from onnx import TensorProto, helper

    graph = _OnnxGraph()
    node = graph.add
    # Below, ``x`` and ``command`` are names of outputs in the graph, and ``width`` is the size of ``x``.
    x, command = "observation", "command"
    width = tensors["layers.0.weight"].shape[1]
    sizes = {x: width}  # input of the model -> its size
    if "command" in tensors:
        *_, centre, scale = tensors["command"]  # the last two rows of `COMMAND_ROWS`
        num_commands = len(centre)
        sizes[command] = num_commands
        command = node("Mul", node("Sub", command, centre), scale)
    if "mean" in tensors:
        normalised = node("Mul", node("Sub", x, tensors["mean"]), tensors["scale"])
        x = node("Clip", normalised, np.float32(-CLIP_LIMIT), np.float32(CLIP_LIMIT))
    # The last layer has no activation: a leaky ReLU with slope 1 changes nothing.
    for i, activation in enumerate([*header["activations"], 1]):
        weight, bias = tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"]
        if weight.shape[1] != width:  # the layer also has the products of commands and inputs, and the commands
            products = node("Mul", node("Unsqueeze", command, [2]), node("Unsqueeze", x, [1]))
            x = node("Concat", x, node("Reshape", products, [-1, num_commands * width]), command, axis=1)
        width = len(bias)
        x = graph.add_activation(node("Gemm", x, weight, bias, transB=1), activation, width)
        if f"gates.{i}.bias" in tensors:
            gate = node("Gemm", command, tensors[f"gates.{i}.weight"], tensors[f"gates.{i}.bias"], transB=1)
            x = node("Mul", x, node("Sigmoid", gate))
    is_index = header["head"] == "argmax"
    if is_index:
        node("ArgMax", x, axis=1, keepdims=0)
    else:
        low, high = (np.float32(header["actions"][name]) for name in ("low", "high"))
        x = node("Tanh", x) if header["head"] == "tanh" else x
        if header["head"] != "clip":
            x = node("Add", node("Mul", x, (high - low) / 2), (low + high) / 2)
        node("Min", node("Max", x, low), high)
    graph.nodes[-1].output[0] = "action"  # the name of the model's output
    action_type, action_shape = (TensorProto.INT64, ["N"]) if is_index else (TensorProto.FLOAT, ["N", width])
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size]) for name, size in sizes.items()]
    outputs = [helper.make_tensor_value_info("action", action_type, action_shape)]
    policy = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = helper.make_model(policy, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {KEY: json.dumps(header), "command": json.dumps(_command(tensors))})
    return model.SerializeToString()  # type: ignore[no-any-return]


class _OnnxGraph:
    """The operations (``nodes``) and the ``constants`` of an ONNX model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Add an operation of ONNX, such as "Mul", and return the name of its output. ``inputs`` are names of outputs
        of other operations, or arrays and numbers, which become constants."""
        from onnx import helper, numpy_helper

        number = len(self.nodes)
        names = []
        for i, value in enumerate(inputs):
            if isinstance(value, str):
                names.append(value)
            else:
                names.append(f"{number}_{i}")  # no other constant has this name
                self.constants.append(numpy_helper.from_array(np.asarray(value), names[-1]))
        output = f"{operator}_{number}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def add_activation(self, x: str, activation: str | float, width: int) -> str:
        """Apply an ``activation``, a name or the slope of a leaky ReLU, to the output called ``x``, ``[N, width]``.
        Return the name of the new output."""
        if not isinstance(activation, str):
            return self.add("LeakyRelu", x, alpha=float(activation))
        if activation.startswith(ONE_HOT):  # the largest number in each group of ``size`` becomes 1, the others 0
            size = int(activation.removeprefix(ONE_HOT))
            groups = self.add("Reshape", x, [-1, width // size, size])
            index = self.add("ArgMax", groups, axis=2, keepdims=0)
            one_hot = self.add("OneHot", index, size, np.array([0, 1], np.float32))
            return self.add("Reshape", one_hot, [-1, width])
        if activation == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        return self.add(activation.capitalize(), x)


FORMATS = {
    ".safetensors": lambda header, tensors: safetensors_numpy.save(dict(tensors), {KEY: json.dumps(header)}),
    ".js": _javascript,
    ".mjs": _javascript,
    ".onnx": _onnx,
}
"""Ending of a file -> function that returns its content."""

"""Requests to a server: REST, Open Inference Protocol, gRPC, and plain connections."""

import base64
import gzip
import json
from typing import NamedTuple

from convoy.serving import tensorflow_serving_pb2 as messages
from tests.serving.test_fuzz import KEYS

from . import images
from .mutation import EDGES, mutate, mutate_json

MODELS = ("half", "pictures")
# Names in paths: missing, of control characters, long, of other folders, and of other scripts.
NAMES = (
    *("nothing", "%00", "a" * 3000, "..", "half/versions/1", "%2e%2e%2fhalf", "..%2f..%2fetc"),
    *("%E6%A8%A1%E5%9E%8B", "%F0%9F%9A%82", "%ff%fe", "%D9%A1", "half%0d%0aX:%20y", "%s%n", "{}"),
)
METHODS = ("POST", "POST", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS")
REMOTE_METHODS = (
    "PredictionService/Predict",
    "PredictionService/Classify",
    "PredictionService/Regress",
    "PredictionService/MultiInference",
    "PredictionService/GetModelMetadata",
    "ModelService/GetModelStatus",
    "ModelService/HandleReloadConfigRequest",
    "PredictionService/Nothing",
)
HEADER_LENGTH = "Inference-Header-Content-Length"
# Header lines that two servers could understand differently.
SMUGGLED = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: x, chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Content-Length: 0",
    b"Content-Length: +5",
    b"Content-Length: 5, 25",
    b" Content-Length: 3",
    b"X: y\n\nGET / HTTP/1.1",
    b"X: y\r\rHost: z",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Expect: 100-continue",
    b"Expect: x",
    b"Host: other",
    b"\0: x",
    b"X" * 9000 + b": y",
    b"\r\n".join(b"X%d: y" % number for number in range(2000)),
)
# Numbers of examples: the largest is the limit of the server, which the next one exceeds.
EXAMPLES = (0, 1, 1, 2, 40, 1000, 1001)
# Bytes and numbers of a feature in a context, which belongs to every example.
CONTEXT_BYTES = (0, 1, 100, 10_000, 400_000)
CONTEXT_NUMBERS = (0, 1, 1, 192, 192, 20_000, 100_000)
# A megabyte of spaces in a kilobyte.
BOMB = gzip.compress(b'{"instances": [1.0' + b" " * (1 << 20) + b"]}", 9)


class HttpRequest(NamedTuple):
    """An HTTP request whose framing is right."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def rest(rng):
    """Return a request to TensorFlow Serving's REST API."""
    model = rng.choice((*MODELS * 12, *NAMES))
    verb = rng.choice((":predict", ":classify", ":regress", "", "/metadata", ":nothing"))
    version = rng.choice(("", "", "", "/versions/1", "/versions/" + "9" * 30, "/labels/x"))
    path = f"{rng.choice(('/v1', '/v1', '/v1', '/v3', '//v1'))}/models/{model}{version}{verb}"
    headers = {"Content-Type": rng.choice(("application/json", "text/plain", "\xff", ""))}
    if verb in (":classify", ":regress") and rng.random() < 0.7:
        body = _json_examples(rng)
    else:
        body = _json_body(rng, model)
    if rng.random() < 0.2:
        headers["Content-Encoding"] = rng.choice(("gzip", "GZIP", "deflate", "br", "x", "identity"))
        body = rng.choice((body, gzip.compress(body, 1), BOMB, BOMB[:-9]))
    if rng.random() < 0.05:
        headers |= {f"X-{number}": "y" * 50 for number in range(rng.choice((10, 100, 1000)))}
    return HttpRequest(rng.choice(METHODS), path, headers, body)


def _json_body(rng, model):
    image = base64.b64encode(images.generate(rng)).decode()
    valid = {"instances": [{"b64": image}] if model == "pictures" else [1.0, 2.0]}
    kind = rng.randrange(8)
    if kind == 0:
        depth = rng.choice((10, 1000, 100_000))
        return b'{"instances": ' + b"[" * depth + b"]" * rng.choice((0, depth)) + b"}"
    if kind == 1:
        return b'{"instances": [' + b"[]," * rng.randrange(20_000) + b"1]}"
    if kind == 2:
        number = rng.choice(
            (
                *(b"NaN", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"0x1", b"-", b"1."),
                *(b"9" * 5000, b"9" * 100_000, b"1" + b"0" * 400, b"1e" + b"9" * 5000, b"1_0"),
                *(b"0." + b"1" * 100_000, b'"\\ud800"', b"true"),
            )
        )
        return b'{"instances": [' + number + b"]}"
    if kind == 3:
        return mutate(rng, json.dumps(valid).encode())
    if kind == 4:
        return rng.randbytes(rng.randrange(2000))
    if kind == 5:
        shape = rng.choice(([0], [1, 0], [[1]], [[1, 2], [3]], [{}], [{"x": 1}, {"y": 2}]))
        return json.dumps({rng.choice(KEYS): shape, rng.choice(KEYS): shape}).encode()
    return json.dumps(mutate_json(rng, valid) if kind == 6 else valid).encode()


def _json_examples(rng):
    """Return the text of examples, most of them with a context."""
    request = {"examples": [_json_example(rng) for _ in range(rng.choice(EXAMPLES))]}
    if rng.random() < 0.8:
        name = rng.choice(("x", "image", "image", ""))
        request["context"] = {name: _json_feature(rng, _context_file, CONTEXT_NUMBERS)}
    if rng.random() < 0.2:
        request = mutate_json(rng, request)
    return json.dumps(request).encode()


def _json_example(rng):
    """Return an example, which in most cases has no features of its own."""
    if rng.random() < 0.95:
        return {}
    name = rng.choice(("x", "image", ""))
    return {name: _json_feature(rng, images.generate, (0, 1, 1, 2, 192))}


def _json_feature(rng, file, counts):
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice((1, 0.5, True, None, "x", {}, [[]], [{"b64": "AA=="}] * 2))
    if kind == 1:
        return [rng.choice((0.5, 1, 255, -1, 1e300))] * rng.choice(counts)
    text = base64.b64encode(file(rng)).decode()
    return rng.choice(({"b64": text}, [{"b64": text}], {"b64": text[1:]}))


def _context_file(rng):
    """Return an image with anything after its end, or anything."""
    image = rng.choice((images.generate(rng), images.encoded("PNG", rng.randrange(12)), b""))
    return image + rng.randbytes(rng.choice(CONTEXT_BYTES))


def open_inference(rng):
    """Return a request to the Open Inference Protocol over REST."""
    model = rng.choice((*MODELS, "nothing"))
    sizes = (1, 2, 0, -1, 1.5, *EDGES, 1 << 62, "1", None)
    tensor = {
        "name": rng.choice(("x", "image", "y", "", None)),
        "datatype": rng.choice(("FP32", "FP64", "INT8", "BYTES", "BOOL", "FP16", "NOTHING", 3)),
        "shape": [rng.choice(sizes) for _ in range(rng.choice((0, 1, 1, 2, 4, 50)))],
    }
    binary = b""
    if rng.random() < 0.5:
        binary = rng.choice((rng.randbytes(rng.randrange(100)), images.generate(rng)))
        size = rng.choice((len(binary), *EDGES, -1, "x"))
        tensor["parameters"] = {"binary_data_size": size}
    else:
        tensor["data"] = [
            rng.choice((0.5, 1, "a", None, [1], 1e300)) for _ in range(rng.randrange(4))
        ]
    header = {"inputs": [tensor] * rng.choice((1, 1, 1, 2, 0)), "outputs": []}
    if rng.random() < 0.5:
        header = mutate_json(rng, header)
    text = json.dumps(header).encode()
    headers = {}
    if binary or rng.random() < 0.2:
        length = rng.choice((len(text), len(text), *EDGES, -1, "x", "9" * 30))
        headers[HEADER_LENGTH] = str(length)
    path = f"/v2/models/{model}{rng.choice(('', '/versions/1'))}/infer"
    return HttpRequest("POST", path, headers, text + binary)


def remote(rng):
    """Return a method of TensorFlow Serving's gRPC services, and a message."""
    method = rng.choice(REMOTE_METHODS[:1] * 6 + REMOTE_METHODS[1:4] * 2 + REMOTE_METHODS)
    if rng.random() < 0.2:
        return method, rng.randbytes(rng.randrange(300))
    request = _with_examples(rng, method) or _with_tensor(rng)
    data = request.SerializeToString()
    return method, mutate(rng, data) if rng.random() < 0.3 else data


def metadata(rng):
    """Return the metadata of a gRPC call."""
    if rng.random() < 0.9:
        return ()
    count, size = rng.choice(((1, 10), (50, 10), (1, 7000), (1, 100_000), (1000, 100)))
    return tuple((f"x{number}", "y" * size) for number in range(count))


def _model_spec(rng, spec):
    spec.name = rng.choice((*MODELS * 4, "nothing", "", "../half", "\u6a21\u578b"))
    if rng.random() < 0.2:
        spec.version.value = rng.choice((0, 1, -1, 1 << 62))
    elif rng.random() < 0.2:
        spec.version_label = rng.choice(("x", "", "\0"))
    if rng.random() < 0.1:
        spec.signature_name = rng.choice(("serving_default", "x"))


def _with_tensor(rng):
    request = messages.PredictRequest()
    _model_spec(rng, request.model_spec)
    tensor = request.inputs[rng.choice(("x", "image", ""))]
    tensor.dtype = rng.choice((1, 1, 1, 7, 7, 2, 3, 9, 14, 19, 99))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4, 300))):
        tensor.tensor_shape.dim.add().size = rng.choice(
            (1, 1, 2, 0, -1, 67108864, 1 << 40, 1 << 62)
        )
    if rng.random() < 0.1:
        tensor.tensor_shape.unknown_rank = True
    kind = rng.randrange(4)
    if kind == 0:
        tensor.tensor_content = rng.randbytes(rng.choice((0, 3, 4, 8, 4000)))
    elif kind == 1:
        tensor.float_val.extend([0.5] * rng.choice((1, 2, 100)))
    elif kind == 2:
        tensor.string_val.extend(images.generate(rng) for _ in range(rng.choice((1, 1, 3))))
    return request


def _with_examples(rng, method):
    """Return a request of examples, or none if the method takes tensors."""
    kinds = {
        "PredictionService/Classify": messages.ClassificationRequest,
        "PredictionService/Regress": messages.RegressionRequest,
        "PredictionService/MultiInference": messages.MultiInferenceRequest,
    }
    if method not in kinds:
        return None
    request = kinds[method]()
    if method.endswith("MultiInference"):
        for _ in range(rng.choice((0, 1, 2, 50))):
            task = request.tasks.add()
            _model_spec(rng, task.model_spec)
            names = ("tensorflow/serving/classify", "tensorflow/serving/regress", "x")
            task.method_name = rng.choice(names)
    else:
        _model_spec(rng, request.model_spec)
    if rng.random() < 0.5:
        _fill_with_context(rng, request.input.example_list_with_context)
        return request
    examples = request.input.example_list.examples
    for _ in range(rng.choice((0, 1, 1, 2, 40))):
        feature = examples.add().features.feature[rng.choice(("x", "x", "image", ""))]
        _fill_feature(rng, feature, images.generate, (0, 1, 1, 2, 192))
    return request


def _fill_with_context(rng, source):
    """Add a context, and examples that in most cases have no features of their own."""
    feature = source.context.features.feature[rng.choice(("x", "image", "image", ""))]
    _fill_feature(rng, feature, _context_file, CONTEXT_NUMBERS)
    for _ in range(rng.choice(EXAMPLES)):
        example = source.examples.add()
        if rng.random() < 0.05:
            feature = example.features.feature[rng.choice(("x", "image", ""))]
            _fill_feature(rng, feature, images.generate, (0, 1, 1, 2, 192))


def _fill_feature(rng, feature, file, counts):
    """Give a feature numbers or a file, or nothing."""
    kind = rng.randrange(4)
    if kind == 0:
        feature.float_list.value.extend([0.5] * rng.choice(counts))
    elif kind == 1:
        feature.int64_list.value.extend([rng.choice((0, 9, 1 << 62, -1))] * rng.choice(counts))
    elif kind == 2:
        feature.bytes_list.value.extend([file(rng)] * rng.choice((1, 1, 1, 2)))


def intact_request(port):
    """Return the bytes of a request that the server answers with 200."""
    body = b'{"instances": [1.0, 2.0]}'
    head = f"POST /v1/models/half:predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def connection(rng, port):
    """Return bytes for a connection, and whether the client then half-closes it."""
    whole = intact_request(port)
    kind = rng.randrange(6)
    if kind == 0:
        data = whole[: rng.randrange(len(whole))]
    elif kind == 1:
        data = rng.randbytes(rng.randrange(1, 2000)) + rng.choice((b"", b"\r\n\r\n"))
    elif kind == 2:
        data = whole * rng.randint(2, 5) + mutate(rng, whole)
    elif kind == 3:
        head = whole.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
        data = head + rng.choice(
            (b"5\r\nabc", b"-1\r\n", b"f" * 40 + b"\r\n", b"x\r\n", b"0\r\n\r\n")
        )
    elif kind == 4:
        line = rng.choice(SMUGGLED) + b"\r\n"
        data = whole.replace(b"Content-Length", line + b"Content-Length", 1) + whole
    else:
        data = mutate(rng, whole)
    return data, rng.random() < 0.5

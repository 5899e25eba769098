"""TensorFlow Serving's gRPC services: `PredictionService` and `ModelService`."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from convoy.serving.classes import classes_of, value_of
from convoy.serving.errors import Code, ServingError, invalid, not_found
from convoy.serving.metadata import DATA_TYPES, PREDICT_METHOD
from convoy.serving.protocol import MODELS_KEY, SERVING, message
from convoy.serving.service import Service, Target
from convoy.serving.signature import (
    DEFAULT_SIGNATURE,
    Arrays,
    Signature,
    Tensor,
    check_signature_name,
)
from convoy.serving.tensor_protos import of_input, to_array, to_proto
from convoy.serving.versions import LoadedVersion, ModelConfig, Policy

Method = Callable[[Any], Awaitable[Any]]
SIGNATURES = "signature_def"
# Clients take 8 KB of metadata.
MOST_METADATA = 4096
_UNSET = "Model spec has no name."


def _type(name: str) -> Any:
    return message(f"{SERVING}.{name}")


class GrpcApi:
    """Answers gRPC calls.

    Args:
        service: the models.
        token: what clients must send as a bearer token, if anything.
        may_reload: whether clients may change which models are served.
    """

    def __init__(self, service: Service, token: str | None, may_reload: bool) -> None:
        self.service = service
        self._token = token
        self._may_reload = may_reload

    def handlers(self) -> list[Any]:
        prediction = {
            "Predict": (self.predict, "PredictRequest"),
            "Classify": (self.classify, "ClassificationRequest"),
            "Regress": (self.regress, "RegressionRequest"),
            "MultiInference": (self.multi_inference, "MultiInferenceRequest"),
            "GetModelMetadata": (self.metadata, "GetModelMetadataRequest"),
        }
        model = {
            "GetModelStatus": (self.status, "GetModelStatusRequest"),
            "HandleReloadConfigRequest": (self.reload, "ReloadConfigRequest"),
        }
        services = {"PredictionService": prediction, "ModelService": model}
        return [
            grpc.method_handlers_generic_handler(
                f"{SERVING}.{title}",
                {name: self._handler(method, _type(kind)) for name, (method, kind) in made.items()},
            )
            for title, made in services.items()
        ]

    def _handler(self, method: Method, request_type: Any) -> Any:
        def read(data: bytes) -> Any:
            try:
                return request_type.FromString(data)
            except Exception:  # protobuf's, which differs between its implementations
                return None

        async def answer(request: Any, context: Any) -> Any:
            try:
                self._check_token(context)
                if request is None:
                    raise invalid(f"The bytes are not a {request_type.DESCRIPTOR.name}.")
                return await method(request)
            except ServingError as error:
                await context.abort(_status(error.code), error.message, self._names(error))

        return grpc.unary_unary_rpc_method_handler(
            answer, read, lambda answered: answered.SerializeToString()
        )

    def _names(self, error: ServingError) -> tuple[tuple[str, str], ...]:
        """Return what is sent along with an error: the models there are, if another was asked for.

        The text of the error stays TensorFlow Serving's.
        """
        names = json.dumps(list(self.service.models))
        if error.code != Code.NOT_FOUND or len(names) > MOST_METADATA:
            return ()
        return ((MODELS_KEY, names),)

    def _check_token(self, context: Any) -> None:
        if self._token is None:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not hmac.compare_digest(str(given).encode(), f"Bearer {self._token}".encode()):
            raise ServingError(Code.UNAUTHENTICATED, "Send the metadata authorization: Bearer ...")

    async def predict(self, request: Any) -> Any:
        target = _target(request.model_spec)
        with self.service.using(target, "Predict") as loaded:
            signature = loaded.servable.signature
            arrays = {
                name: to_array(proto, signature.input(name))
                for name, proto in request.inputs.items()
            }
            wanted = _filtered(request.output_filter, signature)
            outputs = await self.service.run(loaded, arrays)
            response = _type("PredictResponse")()
            for name in wanted:
                response.outputs[name].CopyFrom(to_proto(outputs[name]))
            _fill_spec(response.model_spec, target, loaded)
            return response

    async def classify(self, request: Any) -> Any:
        response = _type("ClassificationResponse")()
        await self._examples(request, "Classify", response, _fill_classes)
        return response

    async def regress(self, request: Any) -> Any:
        response = _type("RegressionResponse")()
        await self._examples(request, "Regress", response, _fill_values)
        return response

    async def _examples(
        self,
        request: Any,
        method: str,
        response: Any,
        fill: Callable[[Any, Arrays, LoadedVersion], None],
    ) -> None:
        target = _target(request.model_spec)
        with self.service.using(target, method) as loaded:
            arrays = of_input(request.input, loaded.servable.signature)
            fill(response.result, await self.service.run(loaded, arrays), loaded)
            _fill_spec(response.model_spec, target, loaded)

    async def multi_inference(self, request: Any) -> Any:
        response = _type("MultiInferenceResponse")()
        if not request.tasks:
            raise invalid("Inference request has no tasks.")
        if len({task.model_spec.name for task in request.tasks}) > 1:
            raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model.")
        for task in request.tasks:
            target = _target(task.model_spec)
            with self.service.using(target, "MultiInference") as loaded:
                arrays = of_input(request.input, loaded.servable.signature)
                result = response.results.add()
                _fill_spec(result.model_spec, target, loaded)
                if task.method_name == "tensorflow/serving/classify":
                    outputs = await self.service.run(loaded, arrays)
                    _fill_classes(result.classification_result, outputs, loaded)
                elif task.method_name == "tensorflow/serving/regress":
                    outputs = await self.service.run(loaded, arrays)
                    _fill_values(result.regression_result, outputs, loaded)
                else:
                    text = f"Unsupported signature method_name: {task.method_name}"
                    raise ServingError(Code.UNIMPLEMENTED, text)
        return response

    async def metadata(self, request: Any) -> Any:
        target = _target(request.model_spec)
        fields = list(request.metadata_field)
        if not fields:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in fields:
            if field != SIGNATURES:
                raise invalid(f"Metadata field {field} is not supported")
        loaded = self.service.find(target)
        signatures = _type("SignatureDefMap")()
        definition = signatures.signature_def[DEFAULT_SIGNATURE]
        definition.method_name = PREDICT_METHOD
        for tensor in loaded.servable.signature.inputs:
            _fill_info(definition.inputs[tensor.name], tensor)
        for tensor in loaded.servable.signature.outputs:
            _fill_info(definition.outputs[tensor.name], tensor)
        response = _type("GetModelMetadataResponse")()
        _fill_spec(response.model_spec, target, loaded)
        packed = response.metadata[SIGNATURES]
        packed.type_url = f"type.googleapis.com/{SERVING}.SignatureDefMap"
        packed.value = signatures.SerializeToString()
        return response

    async def status(self, request: Any) -> Any:
        target = _target(request.model_spec)
        if target.model not in self.service.models:
            raise not_found(f"Could not find any versions of model {target.model}")
        response = _type("GetModelStatusResponse")()
        for status in self.service.model(target.model).status(target.version, target.label):
            entry = response.model_version_status.add(version=status.version, state=status.state)
            entry.status.error_code = status.code
            entry.status.error_message = status.message
        return response

    async def reload(self, request: Any) -> Any:
        if not self._may_reload:
            raise ServingError(
                Code.PERMISSION_DENIED, "Start the server with --allow-reload to change its models."
            )
        configs = [_config(entry) for entry in request.config.model_config_list.config]
        if not configs:
            raise invalid("The request has no model_config_list.")
        await self.service.configure(configs)
        return _type("ReloadConfigResponse")()


def _target(spec: Any) -> Target:
    if not spec.name:
        raise invalid(_UNSET)
    check_signature_name(spec.signature_name)
    version = spec.version.value if spec.HasField("version") else None
    return Target(spec.name, version, spec.version_label or None)


def _fill_spec(spec: Any, target: Target, loaded: LoadedVersion) -> None:
    spec.name = target.model
    spec.version.value = loaded.version
    spec.signature_name = DEFAULT_SIGNATURE


def _filtered(wanted: Any, signature: Signature) -> list[str]:
    known = [tensor.name for tensor in signature.outputs]
    for name in wanted:
        if name not in known:
            raise invalid(f"output tensor alias not found in signature: {name}")
    if len(set(wanted)) != len(wanted):
        raise invalid("duplicate output tensor alias in output_filter")
    return list(wanted) or known


def _fill_classes(result: Any, outputs: Arrays, loaded: LoadedVersion) -> None:
    labels, scores = classes_of(outputs, loaded.servable.class_names)
    for row in scores.tolist():
        entry = result.classifications.add()
        for label, score in zip(labels, row, strict=True):
            entry.classes.add(label=label, score=score)


def _fill_values(result: Any, outputs: Arrays, _: LoadedVersion) -> None:
    for value in value_of(outputs).tolist():
        result.regressions.add(value=value)


def _fill_info(info: Any, tensor: Tensor) -> None:
    info.name = f"{tensor.name}:0"
    info.dtype = DATA_TYPES[tensor.dtype][1]
    for size in (-1, *tensor.shape):
        info.tensor_shape.dim.add(size=size)


def _config(entry: Any) -> ModelConfig:
    if not entry.name or not entry.base_path:
        raise invalid("Each model needs a name and a base_path.")
    chosen = entry.model_version_policy
    policy = Policy()
    if chosen.HasField("all"):
        policy = Policy(latest=0)
    elif chosen.HasField("specific"):
        policy = Policy(specific=tuple(chosen.specific.versions))
    elif chosen.latest.num_versions:
        policy = Policy(latest=chosen.latest.num_versions)
    labels = {label.key: label.value for label in entry.version_labels}
    return ModelConfig(entry.name, Path(entry.base_path), policy, labels)


def _status(code: Code) -> Any:
    return grpc.StatusCode[code.name]

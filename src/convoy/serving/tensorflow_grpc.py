"""TensorFlow Serving's gRPC services: `PredictionService` and `ModelService`."""

import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import grpc
from convoy.serving import admission
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.credentials import Token
from convoy.serving.errors import (
    Code,
    ServingError,
    describe_error,
    invalid,
    shorten,
    too_large,
)
from convoy.serving.message_fields import MAX_FIELDS, has_few_fields
from convoy.serving.message_receiver import MessageReceiver
from convoy.serving.service import Service, Target
from convoy.serving.signature import Arrays, Signature
from convoy.serving.tensor_protos import from_examples, to_array, to_proto
from convoy.serving.tensorflow_methods import (
    CLASSIFY,
    DEFAULT_SIGNATURE,
    MODELS_KEY,
    REGRESS,
    SERVICE_PACKAGE,
    check_signature_name,
    class_scores,
    regression_values,
    signature_definitions,
)
from convoy.serving.versions import LoadedVersion, ModelConfig, VersionPolicy
from google.protobuf.message import Message

logger = logging.getLogger("convoy.serving")

Request = TypeVar("Request", bound=Message)
SIGNATURE_FIELD = "signature_def"
# Metadata key of a RESOURCE_EXHAUSTED error: the seconds after which to try again.
RETRY_KEY = "retry-after"
# Clients accept 8 KB of metadata by default.
MAX_METADATA_BYTES = 4096


class GrpcService:
    """Handles gRPC calls.

    Args:
        service: the models.
        token: the bearer token that clients must send.
        allow_reload: whether clients may change the list of models.

    Attributes:
        receiver: receiver of the messages of calls.
    """

    def __init__(self, service: Service, token: Token, allow_reload: bool) -> None:
        self.service = service
        self._token = token
        self._allow_reload = allow_reload
        self.receiver = MessageReceiver(service.admission, service.request_seconds, self._abort)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        prediction = {
            "Predict": self._handler(self.predict, messages.PredictRequest),
            "Classify": self._handler(self.classify, messages.ClassificationRequest),
            "Regress": self._handler(self.regress, messages.RegressionRequest),
            "MultiInference": self._handler(self.multi_inference, messages.MultiInferenceRequest),
            "GetModelMetadata": self._handler(self.metadata, messages.GetModelMetadataRequest),
        }
        model = {
            "GetModelStatus": self._handler(self.status, messages.GetModelStatusRequest),
            "HandleReloadConfigRequest": self._handler(
                self.reload, messages.ReloadConfigRequest, has_deadline=False
            ),
        }
        services = {"PredictionService": prediction, "ModelService": model}
        return [
            grpc.method_handlers_generic_handler(f"{SERVICE_PACKAGE}.{name}", methods)
            for name, methods in services.items()
        ]

    def _handler(
        self,
        method: Callable[[Request], Awaitable[Message]],
        request_type: type[Request],
        has_deadline: bool = True,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a method, with the checks that every call passes.

        Args:
            method: the method.
            request_type: the message that it takes.
            has_deadline: whether its time is limited.
        """
        descriptor: Any = request_type.DESCRIPTOR

        def parse(data: bytes) -> Request:
            if not has_few_fields(data, descriptor):
                raise too_large(
                    f"The {descriptor.name} has more than {MAX_FIELDS} fields. Send tensors as "
                    "tensor_content."
                )
            try:
                return request_type.FromString(data)
            except Exception:  # The implementations of protobuf raise different types.
                raise invalid(f"The bytes are not a {descriptor.name}.") from None

        async def answer(_: Any, context: Any) -> Message | None:
            try:
                given = dict(context.invocation_metadata() or ()).get("authorization", "")
                self._token.check(str(given), "metadata authorization")
                data = await self.receiver.receive(context)
                with self.service.admission.request(context.peer()) as reservation:
                    context.add_done_callback(lambda _: reservation.close())
                    reservation.start()
                    reservation.reserve(len(data))
                    async with self.service.deadline() if has_deadline else nullcontext():
                        request = await self.service.decoders.run(lambda: parse(data), len(data))
                        response = await method(request)
                    reservation.keep_outputs()
                    return response
            except ServingError as error:
                await self._abort(context, error)
            except Exception as error:  # A client gets a plain answer, whatever happens.
                if isinstance(error, grpc.aio.AbortError):
                    raise
                logger.error("%s: %s", descriptor.name, describe_error(error))
                text = "The server failed to handle the request."
                await self._abort(context, ServingError(Code.INTERNAL, text))
            return None

        # To a client, the call is unary. The handler of a stream decides when to receive a message.
        return grpc.stream_unary_rpc_method_handler(
            answer, None, lambda response: response.SerializeToString()
        )

    async def _abort(self, context: Any, error: ServingError) -> None:
        metadata = self._error_metadata(error)
        await context.abort(grpc.StatusCode[error.code.name], error.message, metadata)

    def _error_metadata(self, error: ServingError) -> tuple[tuple[str, str], ...]:
        """Return the seconds to wait, or the names of all models for one that was not found.

        They are in the metadata because the text of the error is TensorFlow Serving's.
        """
        if error.retry_seconds is not None:
            return ((RETRY_KEY, str(math.ceil(error.retry_seconds))),)
        names = json.dumps(list(self.service.models))
        if error.code != Code.NOT_FOUND or len(names) > MAX_METADATA_BYTES:
            return ()
        return ((MODELS_KEY, names),)

    async def predict(self, request: messages.PredictRequest) -> messages.PredictResponse:
        target = _target(request.model_spec)
        with self.service.using(target, "Predict") as loaded:
            signature = loaded.servable.signature
            arrays = await self.service.decoders.run(
                lambda: self._arrays(request, signature), admission.charged_bytes()
            )
            wanted = _wanted_outputs(request.output_filter, signature)
            outputs = await self.service.run(loaded, arrays)

            def encode() -> messages.PredictResponse:
                response = messages.PredictResponse(model_spec=_model_spec(target, loaded))
                for name in wanted:
                    # TensorFlow Serving sends lists of floats, and some clients read only those.
                    response.outputs[name].CopyFrom(to_proto(outputs[name], packed=False))
                return response

            size = sum(outputs[name].nbytes for name in wanted)
            return await self.service.decoders.run(encode, size)

    def _arrays(self, request: messages.PredictRequest, signature: Signature) -> Arrays:
        max_samples = self.service.admission.max_samples
        with admission.attempt():
            return {
                name: to_array(proto, signature.input(name), max_samples)
                for name, proto in request.inputs.items()
            }

    async def classify(
        self, request: messages.ClassificationRequest
    ) -> messages.ClassificationResponse:
        target = _target(request.model_spec)
        with self.service.using(target, "Classify") as loaded:
            outputs = await self._run_examples(request.input, loaded)
            return messages.ClassificationResponse(
                result=_classification(outputs, loaded), model_spec=_model_spec(target, loaded)
            )

    async def regress(self, request: messages.RegressionRequest) -> messages.RegressionResponse:
        target = _target(request.model_spec)
        with self.service.using(target, "Regress") as loaded:
            outputs = await self._run_examples(request.input, loaded)
            return messages.RegressionResponse(
                result=_regression(outputs), model_spec=_model_spec(target, loaded)
            )

    async def multi_inference(
        self, request: messages.MultiInferenceRequest
    ) -> messages.MultiInferenceResponse:
        response = messages.MultiInferenceResponse()
        if not request.tasks:
            raise invalid("Inference request has no tasks.")
        if len({task.model_spec.name for task in request.tasks}) > 1:
            raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model.")
        for task in request.tasks:
            target = _target(task.model_spec)
            with self.service.using(target, "MultiInference") as loaded, admission.task():
                if task.method_name not in (CLASSIFY, REGRESS):
                    text = f"Unsupported signature method_name: {shorten(task.method_name)}"
                    raise ServingError(Code.UNIMPLEMENTED, text)
                outputs = await self._run_examples(request.input, loaded)
                result = response.results.add(model_spec=_model_spec(target, loaded))
                if task.method_name == CLASSIFY:
                    result.classification_result.CopyFrom(_classification(outputs, loaded))
                else:
                    result.regression_result.CopyFrom(_regression(outputs))
        return response

    async def _run_examples(self, source: messages.Input, loaded: LoadedVersion) -> Arrays:
        signature, max_samples = loaded.servable.signature, self.service.admission.max_samples
        arrays = await self.service.decoders.run(
            lambda: from_examples(source, signature, max_samples), admission.charged_bytes()
        )
        return await self.service.run(loaded, arrays)

    async def metadata(
        self, request: messages.GetModelMetadataRequest
    ) -> messages.GetModelMetadataResponse:
        target = _target(request.model_spec)
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != SIGNATURE_FIELD:
                raise invalid(f"Metadata field {shorten(field)} is not supported")
        loaded = self.service.find(target)
        response = messages.GetModelMetadataResponse(model_spec=_model_spec(target, loaded))
        packed = response.metadata[SIGNATURE_FIELD]
        packed.type_url = f"type.googleapis.com/{SERVICE_PACKAGE}.SignatureDefMap"
        packed.value = signature_definitions(loaded.servable.signature).SerializeToString()
        return response

    async def status(
        self, request: messages.GetModelStatusRequest
    ) -> messages.GetModelStatusResponse:
        response = messages.GetModelStatusResponse()
        for status in self.service.status(_target(request.model_spec)):
            entry = response.model_version_status.add(version=status.version, state=status.state)
            entry.status.error_code = status.code
            entry.status.error_message = status.message
        return response

    async def reload(self, request: messages.ReloadConfigRequest) -> messages.ReloadConfigResponse:
        if not self._allow_reload:
            raise ServingError(
                Code.PERMISSION_DENIED, "Start the server with --allow-reload to change its models."
            )
        configs = [_model_config(entry) for entry in request.config.model_config_list.config]
        if not configs:
            raise invalid("The request has no model_config_list.")
        await self.service.configure(configs)
        return messages.ReloadConfigResponse()


def _target(spec: messages.ModelSpec) -> Target:
    if not spec.name:
        raise invalid("Model spec has no name.")
    check_signature_name(spec.signature_name)
    version = spec.version.value if spec.HasField("version") else None
    return Target(spec.name, version, spec.version_label or None)


def _model_spec(target: Target, loaded: LoadedVersion) -> messages.ModelSpec:
    spec = messages.ModelSpec(name=target.model, signature_name=DEFAULT_SIGNATURE)
    spec.version.value = loaded.version
    return spec


def _wanted_outputs(names: Sequence[str], signature: Signature) -> list[str]:
    known = [spec.name for spec in signature.outputs]
    for name in names:
        if name not in known:
            raise invalid(f"output tensor alias not found in signature: {shorten(name)}")
    if len(set(names)) != len(names):
        raise invalid("duplicate output tensor alias in output_filter")
    return list(names) or known


def _classification(outputs: Arrays, loaded: LoadedVersion) -> messages.ClassificationResult:
    labels, scores = class_scores(outputs, loaded.servable.class_names)
    result = messages.ClassificationResult()
    for row in scores.tolist():
        entry = result.classifications.add()
        for label, score in zip(labels, row, strict=True):
            entry.classes.add(label=label, score=score)
    return result


def _regression(outputs: Arrays) -> messages.RegressionResult:
    result = messages.RegressionResult()
    for value in regression_values(outputs).tolist():
        result.regressions.add(value=value)
    return result


def _model_config(entry: messages.ModelConfig) -> ModelConfig:
    if not entry.name or not entry.base_path:
        raise invalid("Each model needs a name and a base_path.")
    chosen = entry.model_version_policy
    policy = VersionPolicy()
    if chosen.HasField("all"):
        policy = VersionPolicy(latest=0)
    elif chosen.HasField("specific"):
        policy = VersionPolicy(specific=tuple(chosen.specific.versions))
    elif chosen.latest.num_versions:
        policy = VersionPolicy(latest=chosen.latest.num_versions)
    return ModelConfig(entry.name, Path(entry.base_path), policy, dict(entry.version_labels))

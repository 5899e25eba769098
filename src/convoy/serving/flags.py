"""The flags of `convoy serve`: type, default, help text and group of each.

Those of batching and of the limits are in `batching.py` and `admission.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from convoy.configuration import Configuration, Count, flag_name
from convoy.serving.admission import AdmissionOptions
from convoy.serving.batching import BatchOptions
from convoy.serving.client import TOKEN_VARIABLE
from convoy.serving.credentials import check_token
from pydantic import Field

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=-1, le=65535)]


@dataclass(frozen=True)
class ServerOptions(Configuration, all_flags=True):
    """Options of a server, with the flags of `convoy serve` for them.

    models:
        poll_seconds: time between searches for new versions; 0: search once
        load_seconds: maximum time to load a version
        try_versions: whether a separate process loads each version first
        allow_reload: whether gRPC clients may change the list of models

    listening:
        host: address to listen on
        port: port of REST; 0: any free port, -1: none
        grpc_port: port of gRPC; 0: any free port, -1: none
        token: token that clients must send (default: $CONVOY_SERVING_TOKEN)
        token_file: a file with the token; read again when it changes
        tls_certificate: a PEM file; turns TLS on
        tls_key: a PEM file
        tls_client_ca: a PEM file; clients need a certificate of this authority
        cors_origin: origin of web pages that may send requests, or * (default: none)

    batching and limits:
        max_connections: maximum HTTP connections (default: from the limit of open files)
        idle_seconds: maximum time of a connection without a complete request, or whose client does
            not read its response
        request_seconds: maximum time of a request
        drain_seconds: time after SIGTERM in which connections are still accepted
        stop_seconds: maximum time to stop, including open requests
    """

    poll_seconds: float = 1.0
    load_seconds: Positive = 600.0
    try_versions: bool = True
    allow_reload: bool = False
    host: str = "127.0.0.1"
    port: Port = 8501
    grpc_port: Port = 8500
    token: str | None = None
    token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    cors_origin: str | None = None
    max_connections: Count | None = None
    idle_seconds: Positive = 60.0
    batching: BatchOptions = field(default_factory=BatchOptions)
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    request_seconds: Positive = 60.0
    drain_seconds: NotNegative = 1.0
    stop_seconds: NotNegative = 30.0

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token, f"--token or ${TOKEN_VARIABLE}")
            if self.token_file is not None:
                raise ValueError(f"Pass --token (or ${TOKEN_VARIABLE}), or --token-file, not both.")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("--tls-certificate and --tls-key go together. Pass both.")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError(
                "--tls-client-ca needs --tls-certificate and --tls-key. Pass them too."
            )
        for name in ("token_file", "tls_certificate", "tls_key", "tls_client_ca"):
            file = getattr(self, name)
            if file is not None and not file.is_file():
                raise ValueError(f"{flag_name(name)} {file}: there is no such file. Pass its path.")
        if self.port < 0 and self.grpc_port < 0:
            raise ValueError(
                "--port -1 and --grpc-port -1 leave nothing to listen on. Pass a port for one."
            )

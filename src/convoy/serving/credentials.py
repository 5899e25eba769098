"""The token and the TLS certificate of a server, which can be replaced while it runs."""

import hmac
import logging
import ssl
from abc import ABC, abstractmethod
from pathlib import Path

import grpc
from convoy.serving.errors import Code, ServingError, describe_error

logger = logging.getLogger("convoy.serving")


def check_token(token: str, source: str) -> str:
    """Return a token that clients can send in a header.

    Raises:
        ValueError: if it is empty, or has spaces or other characters that headers cannot carry.
    """
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"{source}: the token is empty, or has spaces or other characters than letters, digits "
            "and punctuation. Pass another, or none to turn authentication off."
        )
    return token


class _WatchedFiles(ABC):
    """The content of files, which is read again when they change."""

    title = ""
    """Name of the content in log lines."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._status()

    def _status(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in self._paths]
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]

    @abstractmethod
    def _read(self) -> None:
        """Read the files, and use their content."""

    def refresh(self) -> None:
        """Read the files again if they changed; the old content stays if the new is not valid."""
        try:
            status = self._status()
        except OSError:
            return
        if status == self._seen:
            return
        self._seen = status
        try:
            self._read()
        except (OSError, ValueError) as error:
            logger.error("The %s is not replaced: %s", self.title, describe_error(error))
        else:
            logger.info("The %s was replaced.", self.title)


class Token(_WatchedFiles):
    """The bearer token that clients must send.

    Args:
        token: the token, if it does not change.
        file: a file with the token in its first line.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it has no token.
    """

    title = "token"

    def __init__(self, token: str | None = None, file: Path | None = None) -> None:
        super().__init__(*([] if file is None else [file]))
        self._token = token
        self._read()

    def _read(self) -> None:
        for file in self._paths:
            lines = file.read_text(errors="replace").splitlines()
            self._token = check_token(lines[0].strip() if lines else "", f"--token-file {file}")

    def check(self, given: str, place: str) -> None:
        """Check the token of a request.

        Args:
            given: the authorization that the request has.
            place: the part of a request that has the authorization, for the error.

        Raises:
            ServingError: if the token is wrong.
        """
        if self._token is None:
            return
        expected = f"Bearer {self._token}".encode()
        if not hmac.compare_digest(given.encode(errors="replace"), expected):
            raise ServingError(Code.UNAUTHENTICATED, f"Send the {place}: Bearer ...")


class Certificate(_WatchedFiles):
    """The certificate of a server, and the authority of its clients' certificates.

    Args:
        certificate: a PEM file with the certificate and those of its authorities.
        key: a PEM file with its private key.
        client_ca: a PEM file with the authority that must have signed the certificates of clients;
            without it, clients need none.

    Raises:
        OSError: if a file cannot be read or used.
    """

    title = "certificate"

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        super().__init__(certificate, key, *([client_ca] if client_ca else []))
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.context = self._make_context()
        self._grpc = self._grpc_configuration()
        self._sent = self._grpc

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        _load_pair(context, self._certificate, self._key)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError:
                raise OSError(
                    f"--tls-client-ca {self._client_ca}: not a PEM file with a certificate. Pass "
                    "another file."
                ) from None
        return context

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        authority = None if self._client_ca is None else self._client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], authority)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC, which follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._grpc, self._replaced, require_client_authentication=self._client_ca is not None
        )

    def _replaced(self) -> grpc.ServerCertificateConfiguration | None:
        """Return gRPC's configuration if it changed; gRPC calls this for each new connection."""
        if self._sent is self._grpc:
            return None
        self._sent = self._grpc
        return self._grpc

    def _read(self) -> None:
        # The certificate may have been replaced before the key, and only a matching pair is loaded
        # into the active context.
        self._make_context()
        configuration = self._grpc_configuration()
        _load_pair(self.context, self._certificate, self._key)
        self._grpc = configuration


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        # With a password, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise OSError(
            f"--tls-certificate {certificate}, --tls-key {key}: not PEM files with a certificate "
            "and its private key without a password. Pass other files."
        ) from None

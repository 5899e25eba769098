"""Tokens, certificates, and their replacement while the server runs."""

import http.client
import json
import logging
import ssl
import subprocess
import time

import grpc
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.credentials import Certificate, Token
from convoy.serving.errors import ServingError
from convoy.serving.flags import ServerOptions
from convoy.serving.versions import ModelConfig
from tests import parts
from tests.serving.running import running

pytestmark = pytest.mark.integration

PREDICT = "/v1/models/half:predict"
ONE = {"instances": [1.0]}
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


@pytest.fixture
def half(half_plus_two):
    return [ModelConfig("half", half_plus_two)]


def status_request():
    request = messages.GetModelStatusRequest()
    request.model_spec.name = "half"
    return request.SerializeToString()


def test_a_token_is_asked_for(half):
    with running(half, token="secret") as server:
        assert server.json(PREDICT, ONE)[0] == 401
        wrong = {"Authorization": "Bearer other"}
        assert server.json(PREDICT, ONE, headers=wrong)[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert server.json(PREDICT, ONE, headers=right) == (200, {"predictions": [3.5]})
        assert server.ask("/")[0] == 200
        assert server.ask("/v2/health/live")[0] == 200
        assert server.ask("/status.json")[0] == 401
        request = messages.GetModelStatusRequest()
        request.model_spec.name = "half"
        with grpc.insecure_channel(server.grpc_address) as channel:
            call = channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
            with pytest.raises(grpc.RpcError) as error:
                call(request.SerializeToString(), timeout=600)
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            sent = (("authorization", "Bearer secret"),)
            assert call(request.SerializeToString(), timeout=600, metadata=sent)


@pytest.mark.parametrize("token", ["", " ", "a b", "two\nlines", "\u00e9"])
def test_a_token_that_cannot_be_sent_is_refused(token, tmp_path):
    with pytest.raises(ValueError, match="the token is empty, or has spaces"):
        ServerOptions(token=token)
    file = tmp_path / "token"
    file.write_text(f" {token}")
    if token != "two\nlines":
        with pytest.raises(ValueError, match="--token-file"):
            Token(file=file)


def replaced(condition):
    """Wait for something that the server does once a second."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + 600
        time.sleep(0.05)


def test_a_token_is_replaced_without_a_restart(half, tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    with running(half, token_file=file) as server:

        def status(token):
            return server.ask(PREDICT, ONE, headers={"Authorization": f"Bearer {token}"})[0]

        assert (status("first"), status("second")) == (200, 401)
        file.write_text("second\n")
        replaced(lambda: status("second") == 200)
        assert status("first") == 401
        file.write_text("\n")
        time.sleep(1.5)
        assert status("second") == 200
        assert status("") == 401


def test_the_token_must_be_the_same():
    Token("right").check("Bearer right", "header")
    Token(None).check("", "header")
    for wrong in ("", "Bearer", "Bearer ", "bearer right", "Bearer right ", "Bearer \udcff"):
        with pytest.raises(ServingError, match="Send the header: Bearer"):
            Token("right").check(wrong, "header")


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def make_pair(folder, name, authority=None):
    """Make a certificate and its key, signed by an authority or by itself."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if authority is not None:
        words += ["-CA", authority[0], "-CAkey", authority[1]]
        words += ["-addext", "basicConstraints=critical,CA:FALSE"]
    openssl(*words, "-keyout", key, "-out", certificate)
    return certificate, key


def https(server, authority, client=None):
    """Return the answer to a request, and the certificate of the server."""
    context = ssl.create_default_context(cafile=authority)
    if client is not None:
        context.load_cert_chain(*client)
    connection = http.client.HTTPSConnection("127.0.0.1", server.server.port, context=context)
    try:
        connection.request("POST", PREDICT, json.dumps(ONE))
        certificate = connection.sock.getpeercert(binary_form=True)
        return json.loads(connection.getresponse().read()), certificate
    finally:
        connection.close()


def secure_call(server, authority, client=None):
    pair = () if client is None else (client[1].read_bytes(), client[0].read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.read_bytes(), *pair)
    with grpc.secure_channel(f"localhost:{server.server.grpc_port}", credentials) as channel:
        return channel.unary_unary(STATUS)(status_request(), timeout=600)


@parts.needs("openssl")
def test_tls_on_both_ports(half, tmp_path):
    certificate, key = make_pair(tmp_path, "server")
    with running(half, tls_certificate=certificate, tls_key=key) as server:
        assert https(server, certificate)[0] == {"predictions": [3.5]}
        assert secure_call(server, certificate)
        plain = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=600)
        plain.request("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()


@parts.needs("openssl")
def test_clients_need_a_certificate_of_the_authority(half, tmp_path):
    server_pair, authority = make_pair(tmp_path, "server"), make_pair(tmp_path, "authority")
    client, stranger = make_pair(tmp_path, "client", authority), make_pair(tmp_path, "stranger")
    files = {"tls_certificate": server_pair[0], "tls_key": server_pair[1]}
    with running(half, **files, tls_client_ca=authority[0]) as server:
        assert https(server, server_pair[0], client)[0] == {"predictions": [3.5]}
        assert secure_call(server, server_pair[0], client)
        for wrong in (None, stranger):
            with pytest.raises((ssl.SSLError, http.client.HTTPException, OSError)):
                https(server, server_pair[0], wrong)
            with pytest.raises(grpc.RpcError):
                secure_call(server, server_pair[0], wrong)


@parts.needs("openssl")
def test_a_certificate_is_replaced_without_a_restart(half, tmp_path):
    first, second = make_pair(tmp_path, "first"), make_pair(tmp_path, "second")
    certificate, key = tmp_path / "used.pem", tmp_path / "used.key"
    certificate.write_bytes(first[0].read_bytes())
    key.write_bytes(first[1].read_bytes())
    with running(half, tls_certificate=certificate, tls_key=key) as server:
        before = https(server, first[0])[1]
        certificate.write_bytes(second[0].read_bytes())
        time.sleep(1.5)
        # The key does not belong to it yet.
        assert https(server, first[0])[1] == before
        key.write_bytes(second[1].read_bytes())

        def is_replaced():
            try:
                return https(server, second[0])[1] != before
            except ssl.SSLError:
                return False

        replaced(is_replaced)
        assert secure_call(server, second[0])


@parts.needs("openssl")
def test_files_that_are_no_certificate_are_named(tmp_path):
    certificate, key = make_pair(tmp_path, "server")
    other = make_pair(tmp_path, "other")
    (tmp_path / "text").write_text("text")
    for pair in (
        (tmp_path / "text", key),
        (certificate, tmp_path / "text"),
        (certificate, other[1]),
    ):
        with pytest.raises(
            OSError, match=r"--tls-certificate .*: not PEM files with a certificate"
        ):
            Certificate(*pair, None)
    with pytest.raises(OSError, match=r"--tls-client-ca .*text: not a PEM file"):
        Certificate(certificate, key, tmp_path / "text")


def test_no_secret_is_logged(half, caplog, capfd, tmp_path):
    caplog.set_level(logging.DEBUG, "convoy.serving")
    file = tmp_path / "token"
    file.write_text("very-secret")
    with running(half, token_file=file) as server:
        for token in ("very-secret", "another-secret"):
            server.ask(PREDICT, ONE, headers={"Authorization": f"Bearer {token}"})
            server.ask(f"/?token={token}", headers={"Authorization": f"Bearer {token}"})
        file.write_text("next-secret")
        time.sleep(1.5)
    captured = capfd.readouterr()
    for text in (caplog.text, captured.out, captured.err):
        assert "secret" not in text

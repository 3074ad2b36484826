"""One is who the certificate says, and no part of a name, no second name and no similar name is that name."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from collaboration.network.helpers import SIZE, Place, agreement, begin
from tacit.collaboration.network import Credentials, codec, make_keys
from tacit.collaboration.network.certificates import check_name, common_name, identify

Serve = Callable[..., Place]
UPLOAD = codec.pack_token(0) + codec.pack_upload(0, np.array([1]), np.array([0.25], dtype=np.float32), size=SIZE)


def certificate(keys: Path, names: Sequence[x509.NameAttribute]) -> Credentials:
    """A participant's certificate, of the same authority, for a subject with these attributes."""
    authority = x509.load_pem_x509_certificate((keys / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((keys / "ca.key").read_bytes(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials(
        authority=(keys / "ca.pem").read_bytes(),
        certificate=builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key=private,
    )


def name(text: str, kind: _ASN1Type = _ASN1Type.UTF8String) -> x509.NameAttribute:
    return x509.NameAttribute(NameOID.COMMON_NAME, text, _type=kind)


FALSE: dict[str, list[x509.NameAttribute]] = {
    "NUL and more": [name("ann\0x")],
    "NUL": [name("ann\0")],
    "NUL first": [name("\0ann")],
    "NUL in sixteen bits": [name("ann\0x", _ASN1Type.BMPString)],
    "another name after it": [name("ann"), name("zzz")],
    "another name before it": [name("zzz"), name("ann")],
    "the name twice": [name("ann"), name("ann")],
    "no name": [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ann")],
    "line break": [name("ann\n")],
    "escape": [name("ann\x1b[2J")],
    "space at the end": [name("ann ")],
    "no-break space": [name("ann\u00a0")],
    "invisible": [name("ann\u200b")],
    "the other direction": [name("\u202eann")],
    "fullwidth": [name("\uff41nn")],
    "Cyrillic": [name("\u0430nn")],
    "composed": [name("\u00e1nn")],
    "decomposed": [name("a\u0301nn")],
}
OTHERS = ["Ann", "ANN", "an", "ann.", "ann x"]  # names, but other ones


def attempt(place: Place, own: Credentials, method: str, request: bytes) -> grpc.StatusCode | None:
    """The status of a refusal, or None."""
    credentials = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
    with grpc.secure_channel(place.address, credentials) as channel:
        try:
            channel.unary_unary(f"/tacit.Collaboration/{method}")(request, timeout=10)
        except grpc.RpcError as error:
            return error.code()
    return None


@pytest.mark.parametrize("kind", FALSE)
def test_a_certificate_without_exactly_one_clean_name_is_refused(
    kind: str, serve: Serve, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    own = certificate(keys, FALSE[kind])
    for method, request in (("Agree", b""), ("Push", UPLOAD)):
        assert attempt(place, own, method, request) is grpc.StatusCode.UNAUTHENTICATED
    assert place.service.parameters()[0] == 0
    for record in caplog.records:
        assert record.getMessage().isprintable()
    with pytest.raises(ValueError, match="name"):
        identify(own.certificate)
    with pytest.raises(ValueError, match="name"):
        common_name(x509.load_pem_x509_certificate(own.certificate))


@pytest.mark.parametrize("other", OTHERS)
def test_a_similar_name_is_another_participant(other: str, serve: Serve, keys: Path, tmp_path: Path) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    own = certificate(keys, [name(other)])
    assert attempt(place, own, "Push", UPLOAD) is grpc.StatusCode.PERMISSION_DENIED
    place.service.admit(other)
    assert attempt(place, own, "Push", UPLOAD) is None
    taken = {person["name"]: person["uploads"] for person in place.service.overview()}
    assert (taken["ann"], taken[other]) == (0, 1)


def test_one_common_name_among_other_attributes_is_accepted(serve: Serve, keys: Path, tmp_path: Path) -> None:
    place = serve(begin(tmp_path / "server", agreement()))
    for kind in (_ASN1Type.UTF8String, _ASN1Type.PrintableString, _ASN1Type.BMPString):
        organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Hospital of the North")
        own = certificate(keys, [organisation, name("ann", kind)])
        assert attempt(place, own, "Agree", b"") is None


def test_a_server_may_be_called_by_any_address(tmp_path: Path) -> None:
    assert make_keys(tmp_path, servers=["::1"]) and make_keys(tmp_path, servers=["::1"]) == []
    with pytest.raises(ValueError, match=r"is for '::1', not '192\.0\.2\.1'"):
        make_keys(tmp_path, servers=["192.0.2.1"])


def test_names_that_files_and_pages_can_carry() -> None:
    for good in ("a", "north", "St. Mary-2", "x" * 63):
        assert check_name(good) == good
    for bad in ("", " a", "a ", "a\n", "a/b", "..", "x" * 64, "é"):
        with pytest.raises(ValueError, match="is not a name"):
            check_name(bad)

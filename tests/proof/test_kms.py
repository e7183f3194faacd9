"""Keys that a service keeps: AWS KMS's API, by a server of its own."""

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from dagster_versioned import Project, ProjectResource
from dagster_versioned.errors import InvalidInput
from dagster_versioned.proof.attest import attest
from dagster_versioned.proof.keys import open_signer
from dagster_versioned.proof.signatures import TrustedKeys, check_signatures


def sign_digest(key, message, signing_algorithm):
    """What AWS does with ``MessageType=DIGEST``; moto hashes what it is given once more."""
    assert signing_algorithm == "ECDSA_SHA_256"
    return key.private_key.sign(message, ec.ECDSA(Prehashed(hashes.SHA256())))


@pytest.fixture(scope="module")
def key_id():
    """A P-256 key of a KMS."""
    import boto3
    from moto.kms.utils import ECDSAPrivateKey
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        patch.setattr(ECDSAPrivateKey, "sign", sign_digest)
        client = boto3.client("kms")
        made = client.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")["KeyMetadata"]["KeyId"]
        client.create_alias(AliasName="alias/release", TargetKeyId=made)
        yield made
    server.stop()


def test_a_version_is_signed_by_a_key_that_never_leaves_the_service(key_id, tmp_path):
    project = Project.open("SHOP", str(tmp_path / "shop"))
    project.table("orders").write(pa.table({"v": [1]}))
    signer = open_signer("awskms:alias/release")
    attest(project, "orders", signer=signer)
    assert check_signatures(project, "orders", TrustedKeys.of([signer.public]))[0].standing == "signed"


def test_commits_are_signed_by_it(key_id, tmp_path):
    resource = ProjectResource(name="SHOP", location=str(tmp_path / "shop"), signing_key=f"awskms:{key_id}")
    resource.project().table("orders").write(pa.table({"v": [1]}))
    public = open_signer(f"awskms:{key_id}").public
    (found,) = check_signatures(Project.open("SHOP", str(tmp_path / "shop")), "orders", TrustedKeys.of([public]))
    assert (found.standing, public.algorithm) == ("signed", "ecdsa-p256-sha256")


@pytest.mark.parametrize("name", ["awskms:alias/nobody", "awskms:", "vault:release"])
def test_a_key_that_is_not_there_is_refused_by_name(key_id, name):
    with pytest.raises(InvalidInput) as refused:
        open_signer(name).sign(b"x")
    assert "testing" not in str(refused.value)

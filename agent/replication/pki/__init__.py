"""Certificates: a small certificate authority for zones and brokers, and checks of certificates of any issuer.

The common name of a certificate is the zone, and the broker uses it as the user name in its access list. The authority
is therefore a root of its own: every certificate that it signs may connect, so it signs zones and brokers only. It is
one folder, on a machine that is neither a gateway nor a broker:

    ca.pem  ca.key  ca.crl          the authority and its list of revoked certificates, empty at first
    zones/ZONE.pem                  certificate of a node, whose key stays there
    brokers/NAME.pem                certificate of a broker
    issued/SERIAL.pem               every certificate ever signed, needed to revoke it
    crls/NUMBER.crl                 every revocation list ever made; the newest is ca.crl

On a node, and on the broker's machine, a folder of the same form has the key beside the certificate:

    zones/ZONE.pem .key             identity of a node, used together with ca.pem; brokers/NAME.pem .key of a broker
    */requested/                    a new key and its request, until the certificate is imported
    */next/  */previous/            during a replacement, and what was in force before
    signers/ZONE.pem .key           the key that signs facts; a facts authority, in a folder of its own, issues for it

Guarantees: a key file is never readable by others; a file is replaced whole or not at all; an existing file is
overwritten only with `force`; a certificate expires no later than its authority; every error says what to do. The
current time is an argument.

Not supported: passphrases on keys other than an authority's (a gateway starts unattended), and creating RSA keys (a
site's own are accepted).

`files` reads and writes PEM; `certificates` describes certificates, `checks` finds their problems; `authority` issues
them, for `requests`; `crl` and `revocation` make revocation lists; `renewal` replaces and imports an identity;
`signers` makes those that sign facts; `rotation` and `identity` use an identity in a node.
"""

from agent.file_replace import write_file
from agent.replication.pki.authority import (
    CA_DAYS,
    DAYS_MAX,
    LEAF_DAYS,
    PASSPHRASE_BYTES_MIN,
    Issued,
    check_zone,
    create_authority,
    issue_broker,
    issue_zone,
    load_authority,
)
from agent.replication.pki.certificates import WARN_DAYS, CertificateDetails, describe
from agent.replication.pki.checks import check_broker_identity, check_identity, check_times, client_context
from agent.replication.pki.crl import (
    REASONS,
    CrlDetails,
    check_crl,
    check_not_revoked,
    describe_crl,
    is_crl_of,
    newest_crl_file,
)
from agent.replication.pki.files import (
    FILE_BYTES_MAX,
    check_key_rights,
    disk_errors,
    is_locked,
    load_certificates,
    load_crl,
    load_crls,
    read_file,
)
from agent.replication.pki.identity import Identity, IdentityWatcher
from agent.replication.pki.problem import IdentityProblem, PkiError
from agent.replication.pki.renewal import GivenFiles, import_identity
from agent.replication.pki.requests import Request, make_request, request_fingerprint, sign_request
from agent.replication.pki.revocation import IssuedRecord, list_issued, reissue_crl, revoke
from agent.replication.pki.signers import (
    SIGNER_DAYS,
    create_signer,
    import_signer,
    is_issued_by,
    read_signer,
    request_signer,
    sign_signer,
)

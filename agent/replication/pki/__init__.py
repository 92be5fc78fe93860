"""Who a zone is: a small certificate authority, and the checks on certificates whoever issued them.

The common name of a certificate is the zone, and the broker turns it into the user name that its access list speaks
of.  The authority is therefore a root of its own: whatever it signs may connect, so it signs zones and brokers and
nothing else.  It lives in one folder, which belongs on a machine that is neither a gateway nor a broker:

    ca.pem  ca.key  ca.crl          the authority, and its (at first empty) list of revoked certificates
    zones/ZONE.pem  .key            what a node gets, together with ca.pem
    brokers/NAME.pem  .key          what a broker gets, together with ca.pem and ca.crl
    issued/SERIAL.pem               every certificate ever signed, so that it can be named when it has to be revoked
    crls/NUMBER.crl                 every list ever made; the newest is ca.crl
    */next/  */previous/            while a renewal runs, and for the way back

Promised: a key is never readable by others, not even for a moment; a file is replaced whole or not at all; nothing that
exists is overwritten unless `force` is said; a certificate does not outlive its authority; and every refusal says what
to do.  The current time is an argument.  Not done here: passwords on keys (a gateway starts without a human),
RSA keys of our own (they are accepted from a site's PKI), and any trust in a certificate by its file name.

One room for each idea: `files` reads and writes PEM, `certificates` says what a certificate says, `checks` says what is wrong
with one, `signing` makes them, `authority` keeps the folder, `crl` reads and makes lists, `revocation` decides what is on them, `renewal`
replaces an identity by its next one, ours or one of a site's PKI.
"""

from agent.replication.pki.authority import (
    CA_DAYS,
    DAYS_MAX,
    HOSTS_MAX,
    LEAF_DAYS,
    Authority,
    Issued,
    check_days,
    check_zone,
    create_authority,
    issue_broker,
    issue_zone,
    load_authority,
)
from agent.replication.pki.certificates import CertificateDetails, describe
from agent.replication.pki.checks import (
    CHAIN_LENGTH_MAX,
    check_broker_identity,
    check_identity,
    check_times,
    client_context,
)
from agent.replication.pki.crl import (
    CRL_WARN_DAYS,
    REASONS,
    CrlDetails,
    Revoked,
    check_crl,
    check_not_revoked,
    describe_crl,
    is_crl_of,
)
from agent.replication.pki.files import (
    FILE_BYTES_MAX,
    RSA_BITS_MIN,
    check_key_rights,
    load_certificates,
    load_crl,
    load_crls,
    load_key,
    read_file,
    write_file,
)
from agent.replication.pki.identity import Identity, IdentityWatcher
from agent.replication.pki.problem import PkiError, Problem
from agent.replication.pki.renewal import import_identity, renew, roll_back
from agent.replication.pki.revocation import IssuedRecord, list_issued, reissue_crl, revoke
from agent.replication.pki.signing import BACKDATED

__all__ = [
    "BACKDATED",
    "CA_DAYS",
    "CHAIN_LENGTH_MAX",
    "CRL_WARN_DAYS",
    "DAYS_MAX",
    "FILE_BYTES_MAX",
    "HOSTS_MAX",
    "LEAF_DAYS",
    "REASONS",
    "RSA_BITS_MIN",
    "Authority",
    "CertificateDetails",
    "CrlDetails",
    "Identity",
    "IdentityWatcher",
    "Issued",
    "IssuedRecord",
    "PkiError",
    "Problem",
    "Revoked",
    "check_broker_identity",
    "check_crl",
    "check_days",
    "check_identity",
    "check_key_rights",
    "check_not_revoked",
    "check_times",
    "check_zone",
    "client_context",
    "create_authority",
    "describe",
    "describe_crl",
    "import_identity",
    "is_crl_of",
    "issue_broker",
    "issue_zone",
    "list_issued",
    "load_authority",
    "load_certificates",
    "load_crl",
    "load_crls",
    "load_key",
    "read_file",
    "reissue_crl",
    "renew",
    "revoke",
    "roll_back",
    "write_file",
]

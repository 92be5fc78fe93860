"""The groups of commands that have a folder each: which module holds which command. A command's module is imported when
the command is called, and with it the library of a protocol."""

from agent.cli import LazyGroup

source = LazyGroup(
    "source",
    help="The OPC UA servers and Modbus devices that the node reads.",
    lazy={
        "list": "agent.cli.source.commands:list_command",
        "test": "agent.cli.source.commands:test",
        "read": "agent.cli.source.commands:read",
        "retry": "agent.cli.source.commands:retry",
    },
)
tags = LazyGroup(
    "tags",
    help="Create, check and compare tag files, and import the tag lists of other products.",
    lazy={
        "template": "agent.cli.tags.commands:template",
        "check": "agent.cli.tags.commands:check",
        "diff": "agent.cli.tags.commands:diff",
        "import": "agent.cli.tags.import_list:import_list",
    },
)
opcua = LazyGroup(
    "opcua",
    help="Test, browse and read OPC UA servers; manage trusted certificates.",
    lazy={
        "test": "agent.cli.opcua.probe:test",
        "browse": "agent.cli.opcua.browse:browse",
        "read": "agent.cli.opcua.browse:read",
        "backfill": "agent.cli.source.commands:backfill",
        "trust": "agent.cli.opcua.certificates:trust",
        "certificate": "agent.cli.opcua.certificates:certificate",
    },
)
modbus = LazyGroup(
    "modbus",
    help="Scan and read Modbus devices, find types and byte orders.",
    lazy={
        "scan": "agent.cli.modbus.scan:scan",
        "read": "agent.cli.modbus.read:read",
        "probe": "agent.cli.modbus.register_probe:probe",
    },
)
pki = LazyGroup(
    "pki",
    help="Create and show the certificates of zones and brokers, and the keys that sign facts.",
    lazy={
        "ca": "agent.cli.pki.authority:ca",
        "request": "agent.cli.pki.requests:request",
        "sign": "agent.cli.pki.requests:sign",
        "import": "agent.cli.pki.requests:import_command",
        "issue": "agent.cli.pki.authority:issue",
        "revoke": "agent.cli.pki.authority:revoke",
        "crl": "agent.cli.pki.authority:crl",
        "list": "agent.cli.pki.authority:list_command",
        "show": "agent.cli.pki.show:show",
        "signer": "agent.cli.pki.signer:signer",
    },
)
store = LazyGroup(
    "store",
    help="Check, migrate and export a store, print its statistics and its lives.",
    lazy={
        "export": "agent.cli.store.export:export",
        "lives": "agent.cli.store.stats:lives",
        "migrate": "agent.cli.store.verify:migrate",
        "stats": "agent.cli.store.stats:stats",
        "verify": "agent.cli.store.verify:verify",
    },
)
hardware = LazyGroup(
    "hardware",
    help="Check whether a gateway sustains a load; list the gateway profiles.",
    lazy={
        "check": "agent.cli.hardware.check:check",
        "list": "agent.cli.hardware.check:list_",
    },
)

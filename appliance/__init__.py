"""Packages for gateways without a network: an offline bundle and a .deb for each Debian release and architecture.

Runs on a developer's machine (`make bundle`); only `installer.py` also runs on a gateway.
"""

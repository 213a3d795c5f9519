"""Names and passwords that an application looks up itself."""

from __future__ import annotations

from redis import CredentialProvider


class Credentials(CredentialProvider):
    """Those of nobody; with ``fails`` there are none to be had."""

    fails = False

    def get_credentials(self) -> tuple[str, str]:
        if self.fails:
            raise LookupError("the vault is away")
        return "default", "any"

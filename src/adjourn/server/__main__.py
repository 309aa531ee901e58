"""`python -m adjourn.server NAME [ROLE]`: makes an access token and prints it once, with what to keep of it."""

import sys
from typing import cast

from adjourn.server.principal import ROLES, Role
from adjourn.server.tokens import as_toml, mint


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2 or (arguments[1:] and arguments[1] not in ROLES) or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m adjourn.server NAME [view|decide|admin]\n")
        return 2
    text, token = mint(arguments[0], cast(Role, arguments[1]) if arguments[1:] else "decide")
    sys.stderr.write(
        f"The token, which is shown this once:\n\n    {text}\n\nFor the token file (ADJOURN_TOKEN_FILE):\n\n"
    )
    sys.stdout.write(as_toml(token) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/bin/sh
# Makes the secrets of the compose files beside this script, once. It never replaces one that is there.
#     make_secrets.sh [NAME]       NAME is whose access token it is, the role is admin
set -eu
folder=$(dirname "$0")/secrets
umask 077
mkdir -p "$folder"
chmod 700 "$folder"

random() { python3 -c 'import secrets; print(secrets.token_urlsafe(32))'; }

for name in store_password secret; do
    [ -e "$folder/$name" ] || random >"$folder/$name"
done
if [ ! -e "$folder/tokens.toml" ]; then
    # Only its hash is kept. Where adjourn is not installed: docker run --rm adjourn python -m adjourn.server NAME admin
    "${PYTHON:-python3}" -m adjourn.server "${1:-admin}" admin >"$folder/tokens.toml.new"
    mv "$folder/tokens.toml.new" "$folder/tokens.toml"
fi
# The folder is closed; inside the containers other users have to read the files.
chmod 444 "$folder/store_password" "$folder/secret" "$folder/tokens.toml"

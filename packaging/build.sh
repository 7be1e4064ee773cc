#!/bin/bash
# Makes all packages of the binaries in a folder, as make build leaves them, and prints their
# paths:
#   packaging/build.sh BIN OUT VERSION
# The .deb is made by dpkg-deb, the .rpm by nfpm, and the .tar.gz, which is unpacked in /, by
# tar. Of one commit and the same compilers the packages are always the same.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
source=$here/..
mkdir -p "$2"
out=$(realpath "$2")
"$here/deb/build.sh" "$1" "$2" "$3"

VERSION=$("$here/version.sh" "$3")
SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct 2>/dev/null || stat -c %Y "$1/tsugiki")
ARCH=$(go env GOARCH)
ROOT=$(mktemp -d)
export VERSION SOURCE_DATE_EPOCH ARCH ROOT
trap 'rm -rf "$ROOT"' EXIT
"$here/stage.sh" "$1" "$ROOT" "$3" site-functions
install -m 644 "$source/LICENSE" "$ROOT/usr/share/doc/tsugiki/"
find "$ROOT" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
file=$out/tsugiki_${VERSION}_$ARCH.tar.gz
tar -C "$ROOT" --sort=name --owner=0 --group=0 --numeric-owner -c . | gzip -n >"$file"
echo "$file"
cd "$here/rpm"
file=$out/tsugiki-$VERSION-1.$(uname -m).rpm
go tool -modfile="$source/tools/nfpm.mod" nfpm package --packager rpm --config nfpm.yaml --target "$file" >/dev/null
echo "$file"

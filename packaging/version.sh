#!/bin/bash
# Prints the version of the source: the last tag v..., or what was built on it; without a tag
# VERSION with the date and the commit.
#   packaging/version.sh VERSION
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
version=$1
if described=$(git -C "$source" describe --tags --match 'v[0-9]*' 2>/dev/null); then
	described=${described#v}
	version=${described/-/+}
	version=${version//-/.}
elif commit=$(git -C "$source" log -1 --date=format:%Y%m%d%H%M%S --format='%cd.%h' 2>/dev/null); then
	version=$version+git$commit
fi
git -C "$source" diff --quiet HEAD 2>/dev/null || version=$version.dirty
echo "$version"

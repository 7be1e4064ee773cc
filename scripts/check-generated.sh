#!/bin/bash
# Makes the kernel programs' objects again and fails if they are not what is
# committed. Another compiler than theirs makes others that are as good, so they
# cannot be compared then. That is a failure where CI=true, and a message elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
made_with=14
missing=
if ! version=$(clang -dumpversion 2>/dev/null); then
	missing="there is no clang"
elif [[ ${version%%.*} != "$made_with" ]]; then
	missing="this is clang $version"
fi
if [[ -n $missing ]]; then
	echo "check-generated: the objects in bpf are not compared: $missing, and they are made with clang $made_with (apt-get install clang-$made_with, and clang in PATH)" >&2
	[[ ${CI:-} != true ]]
	exit
fi
go generate ./bpf
git diff --exit-code --stat -- bpf

#!/bin/bash
# Makes the kernel programs' objects again and fails if they are not what is
# committed. Another compiler than theirs makes others that are as good.
set -euo pipefail
cd "$(dirname "$0")/.."
made_with=14
if [[ $(clang -dumpversion | cut -d. -f1) != "$made_with" ]]; then
	echo "check-generated: this is not clang $made_with; the objects are not compared"
	exit 0
fi
go generate ./bpf
git diff --exit-code --stat -- bpf

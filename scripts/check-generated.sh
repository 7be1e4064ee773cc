#!/bin/bash
# Makes generated files again and fails if they are not what is committed: the kernel
# programs' objects, and of Kubernetes' resources the definitions and deep copies. Another compiler
# than theirs makes other objects that are as good, so they cannot be compared then. Nor can
# what controller-gen makes where its modules were not downloaded (scripts/deps.sh). That is a failure
# where CI=true, and a message elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
made_with=14
status=0

# Says why something is not compared.
skip() {
	echo "check-generated: $1" >&2
	[[ ${CI:-} != true ]] || status=1
}

missing=
if ! version=$(clang -dumpversion 2>/dev/null); then
	missing="there is no clang"
elif [[ ${version%%.*} != "$made_with" ]]; then
	missing="this is clang $version"
fi
if [[ -n $missing ]]; then
	skip "the objects in bpf are not compared: $missing, and they are made with clang $made_with (apt-get install clang-$made_with, and clang in PATH)"
else
	go generate ./bpf
	git diff --exit-code --stat -- bpf || status=1
fi

if ! GOPROXY=off go build -modfile=tools/controller-gen/go.mod -o /dev/null sigs.k8s.io/controller-tools/cmd/controller-gen; then
	skip "the definitions of Kubernetes' resources are not compared: controller-gen cannot be built"
else
	kube/hack/generate.sh
	git diff --exit-code --stat -- deploy/crds kube/v1alpha1/zz_generated.deepcopy.go || status=1
fi
exit $status

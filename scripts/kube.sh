#!/bin/bash
# Builds the parts of Kubernetes that tools/kube/go.mod pins, into .cache/kube, and names that
# folder. kube-apiserver is the first, since tests of the controllers need it alone. A program that
# was built of the same modules is not built again. "kube.sh kube-apiserver kubectl" builds only those.
#
# Two processes may call this at once: the second one waits. The first build takes 12 minutes on two
# cores, and 2 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${TSUGIKI_KUBE_CACHE:-$PWD/.cache/kube}
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

mod=tools/kube/go.mod
version=$(go list -modfile=$mod -m -f '{{.Version}}' k8s.io/kubernetes)
programs=("$@")
((${#programs[@]})) || programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy)
for p in "${programs[@]}"; do
	if [[ -x $cache/$p ]] && cmp -s "$mod" "$cache/$p.mod"; then
		continue
	fi
	echo "kube: build $p $version" >&2
	CGO_ENABLED=0 go build -modfile=$mod -trimpath \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$cache/$p.new" "k8s.io/kubernetes/cmd/$p"
	mv "$cache/$p.new" "$cache/$p"
	cp "$mod" "$cache/$p.mod"
done
echo "$cache"

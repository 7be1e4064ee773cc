#!/bin/bash
# Builds the parts of Kubernetes that tools/kube/go.mod pins, and kwok of tools/kwok/go.mod, into
# .cache/kube, and names that folder. kube-apiserver is the first, since tests of the controllers need
# it alone. A program that was built of the same modules is not built again. "kube.sh kube-apiserver
# kubectl" builds only those.
#
# Two processes may call this at once: the second one waits. The first build takes 12 minutes on two
# cores, and 2 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${TSUGIKI_KUBE_CACHE:-$PWD/.cache/kube}
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

programs=("$@")
((${#programs[@]})) || programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy kwok)
for p in "${programs[@]}"; do
	mod=tools/kube/go.mod module=k8s.io/kubernetes stamp=k8s.io/component-base/version.gitVersion
	if [[ $p == kwok ]]; then
		mod=tools/kwok/go.mod module=sigs.k8s.io/kwok stamp=sigs.k8s.io/kwok/pkg/consts.Version
	fi
	if [[ -x $cache/$p ]] && cmp -s "$mod" "$cache/$p.mod"; then
		continue
	fi
	version=$(go list -modfile=$mod -m -f '{{.Version}}' $module)
	echo "kube: build $p $version" >&2
	CGO_ENABLED=0 go build -modfile=$mod -trimpath \
		-ldflags "-s -w -X $stamp=$version" -o "$cache/$p.new" "$module/cmd/$p"
	mv "$cache/$p.new" "$cache/$p"
	cp "$mod" "$cache/$p.mod"
done
echo "$cache"

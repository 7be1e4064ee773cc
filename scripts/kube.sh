#!/bin/bash
# Builds the parts of Kubernetes that tools/kube/go.mod pins, kwok of tools/kwok/go.mod, and containerd
# of tools/containerd/go.mod, into .cache/kube, and names that folder. kube-apiserver is the first, since
# tests of the controllers need it alone. A program that was built of the same modules is not built
# again. "kube.sh kube-apiserver kubectl" builds only those. containerd is a folder, with its shim and
# ctr: they are newer than the distribution's, and no daemon may find the shim of another version.
#
# Two processes may call this at once: the second one waits. The first build takes 16 minutes on two
# cores, and 2 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${TSUGIKI_KUBE_CACHE:-$PWD/.cache/kube}
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

programs=("$@")
((${#programs[@]})) || programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl kube-proxy kwok containerd)
for p in "${programs[@]}"; do
	mod=tools/kube/go.mod module=k8s.io/kubernetes stamp=k8s.io/component-base/version.gitVersion
	commands=("$p") out=$cache/$p.new
	case $p in
	kwok) mod=tools/kwok/go.mod module=sigs.k8s.io/kwok stamp=sigs.k8s.io/kwok/pkg/consts.Version ;;
	containerd)
		mod=tools/containerd/go.mod module=github.com/containerd/containerd/v2
		stamp=$module/version.Version commands=(containerd containerd-shim-runc-v2 ctr) out=$cache/$p.new/
		mkdir -p "$out"
		;;
	esac
	if [[ -x $cache/$p ]] && cmp -s "$mod" "$cache/$p.mod"; then
		continue
	fi
	version=$(go list -modfile=$mod -m -f '{{.Version}}' $module)
	echo "kube: build $p $version" >&2
	CGO_ENABLED=0 go build -modfile=$mod -trimpath \
		-ldflags "-s -w -X $stamp=$version" -o "$out" "${commands[@]/#/$module/cmd/}"
	rm -rf "${cache:?}/$p"
	mv "$cache/$p.new" "$cache/$p"
	cp "$mod" "$cache/$p.mod"
done
echo "$cache"

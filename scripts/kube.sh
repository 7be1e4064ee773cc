#!/bin/bash
# Builds the parts of Kubernetes that tools/kube/go.mod pins, kwok of tools/kwok/go.mod, containerd of
# tools/containerd/go.mod, and CRI-O (crio and pinns) of tools/crio/go.mod, into .cache/kube, and names that
# folder. kube-apiserver is the first, since tests of the controllers need it alone. A program that was
# built of the same modules is not built again. "kube.sh kube-apiserver kubectl" builds only those. CRI-O is
# built if it is named. containerd is a folder, with its shim and ctr: they are newer than the
# distribution's, and no daemon may find the shim of another version.
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

# What CRI-O leaves out: graph drivers and signatures by libraries that nothing here uses.
crio_tags=seccomp,libsqlite3,containers_image_openpgp,containers_image_ostree_stub,exclude_graphdriver_btrfs,btrfs_noversion

# Builds a program of a module, the way that its project does. pinns is in C. containerd has two more programs.
build() {
	local program=$1 mod=$2 module=$3 stamp=$4 version=$5 out=$6 commands=("$1")
	case $program in
	crio) CGO_ENABLED=1 go build -modfile="$mod" -trimpath -tags "$crio_tags" -ldflags '-s -w' -o "$out" "$module/cmd/crio" ;;
	pinns)
		go mod download -modfile="$mod" "$module"
		cc -std=c99 -Os -Wall -static -s -o "$out" "$(go list -modfile="$mod" -m -f '{{.Dir}}' "$module")"/pinns/src/*.c
		;;
	*)
		if [[ $program == containerd ]]; then
			commands+=(containerd-shim-runc-v2 ctr)
			mkdir -p "$out"
		fi
		CGO_ENABLED=0 go build -modfile="$mod" -trimpath -ldflags "-s -w -X $stamp=$version" -o "$out" "${commands[@]/#/$module/cmd/}"
		;;
	esac
}

for p in "${programs[@]}"; do
	mod=tools/kube/go.mod module=k8s.io/kubernetes stamp=k8s.io/component-base/version.gitVersion
	case $p in
	kwok) mod=tools/kwok/go.mod module=sigs.k8s.io/kwok stamp=sigs.k8s.io/kwok/pkg/consts.Version ;;
	crio | pinns) mod=tools/crio/go.mod module=github.com/cri-o/cri-o stamp= ;;
	containerd) mod=tools/containerd/go.mod module=github.com/containerd/containerd/v2 stamp=github.com/containerd/containerd/v2/version.Version ;;
	esac
	if [[ -x $cache/$p ]] && cmp -s "$mod" "$cache/$p.mod"; then
		continue
	fi
	version=$(go list -modfile=$mod -m -f '{{.Version}}' $module)
	echo "kube: build $p $version" >&2
	build "$p" "$mod" "$module" "$stamp" "$version" "$cache/$p.new"
	rm -rf "${cache:?}/$p"
	mv "$cache/$p.new" "$cache/$p"
	cp "$mod" "$cache/$p.mod"
done
echo "$cache"

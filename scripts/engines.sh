#!/bin/bash
# Builds newer container engines than the distribution's, as the modules of tools/ pin them, and
# runs with them all tests that start an engine. Its arguments are flags of go test.
# ENGINES_ONLY=build stops after the builds.
#
# The tests run in a mount namespace in which /usr has these programs in the place of the
# distribution's: engines find each other at fixed paths there, and so do the services of
# systemd. The machine's own /usr stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=$PWD/.cache/engines
path=/usr/sbin:/usr/bin:/sbin:/bin # of the tests' engines

# The version of a module that the go.mod of an engine pins.
pinned() { go list -modfile="tools/$1/go.mod" -m -f '{{.Version}}' "$2" | sed 's/^v//; s/+incompatible$//'; }

# build ENGINE FOLDER LDFLAGS PACKAGE... builds into a folder of the new /usr, unless that was done
# with the same modules. docker/cli has no go.mod, which would say that it is not Go 1.16.
build() {
	local engine=$1 folder=$2 ldflags=$3
	shift 3
	cmp -s "tools/$engine/go.mod" "$cache/$engine.mod" && return
	echo "engines: build $engine"
	mkdir -p "$cache/usr/$folder"
	go build -modfile="tools/$engine/go.mod" -trimpath -tags seccomp \
		-gcflags=github.com/docker/cli/cmd/docker=-lang=go1.26 -ldflags "$ldflags" -o "$cache/usr/$folder/" "$@"
	cp "tools/$engine/go.mod" "$cache/$engine.mod"
}

export CGO_ENABLED=0

module=github.com/opencontainers/runc
runc=$(pinned runc $module)
CGO_ENABLED=1 build runc sbin "" $module # libseccomp is in C

module=github.com/docker/cli
docker=$(pinned docker $module)
build docker bin "-X $module/cli/version.Version=$docker" $module/cmd/docker

module=github.com/moby/moby/v2
dockerd=$(pinned dockerd $module)
build dockerd sbin "-X $module/dockerversion.Version=$dockerd" $module/cmd/{dockerd,docker-proxy}

module=github.com/containerd/containerd/v2
containerd=$(pinned containerd $module)
build containerd bin "-X $module/version.Version=$containerd" $module/cmd/{containerd,containerd-shim-runc-v2,ctr}

[[ ${ENGINES_ONLY:-} != build ]] || exit 0

# Puts the new programs over /usr, and runs the tests.
in_new_usr() {
	unshare --mount --propagation private bash -c '
		mount -t overlay -o "ro,lowerdir=$1/usr:/usr" engines /usr
		cd . # the same folder, of this namespace
		shift
		exec "$@"' bash "$cache" "$@"
}

# Fails if a program does not print its version: it is another one.
check() {
	local said
	said=$(PATH=$path in_new_usr "$1" --version)
	echo "engines: ${said%%$'\n'*}"
	if ! grep -qwF -- "$2" <<<"$said"; then
		echo "engines: this $1 is not $2" >&2
		exit 1
	fi
}
check containerd "$containerd"
check ctr "$containerd"
check runc "$runc"
check dockerd "$dockerd"
check docker "$docker"
echo "engines: of the distribution: $(podman --version), $(crun --version | head -n 1)"

# The packages that use the rig of engines, and their tests that start an engine.
mapfile -t folders < <(git grep -l '"github.com/tsugiki/tsugiki/internal/testkit/engines"' -- '*.go' | xargs -n 1 dirname | sort -u)
folders+=(internal/testkit/engines)
tests=$(for f in "${folders[@]}"; do awk -f scripts/engines.awk "$f"/*.go; done | sort -u | paste -sd '|')
# crun 1.8.1 takes no configuration of Docker 29, grafted or not: "unknown version specified".
TSUGIKI_PACKAGES="${folders[*]/#/./}" in_new_usr scripts/tests.sh -timeout 40m -run "^($tests)\$" -skip '^TestCrun$' "$@"

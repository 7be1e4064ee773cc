#!/bin/bash
# Installs what building and testing need on Debian 12 or later: packages, a Go
# new enough for go.mod, and all Go modules, so that the build is offline after.
# Says nothing and changes nothing where all is there. "deps.sh demo" leaves out
# what only the end-to-end tests need, "deps.sh bench-agent" all of that but what
# containers are made with, "deps.sh bench-charge" all but what runs and loads them,
# "deps.sh bench-forward" all but Open vSwitch, "deps.sh bench-offload" all but that and CNI's
# plugins, "deps.sh bench-peers" all but the engines, pasta and slirp4netns,
# "deps.sh bench-translate" all but the proxies, tayga and the resolvers, "deps.sh bench-vm" all but
# the virtual machines, and their networks;
# "deps.sh kernels" installs what a virtual machine takes, too, "deps.sh engines" what runc is
# built with, and "deps.sh kube" what a cluster takes that scripts/kube.sh does not build.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
	ca-certificates curl git make gcc libc6-dev musl-tools linux-libc-dev pkg-config # build
	clang llvm libbpf-dev clang-format                                     # generate, lint
	iproute2 nftables procps util-linux libcap2-bin strace socat          # test topology
	fio iperf3 sockperf nginx-light redis-server redis-tools wrk apache2-utils python3
)

programs=(
	postgresql nodejs default-jdk-headless python3-uvloop apache2-bin haproxy memcached
	openssh-server openssh-client dnsmasq-base bind9-dnsutils man-db systemd rpm
	php-fpm unbound vsftpd tftpd-hpa wget ntpsec-ntpdig # test/programs
	tnftp python3-pyftpdlib python3-openssl openssl sip-tester # FTP and SIP in test/e2e
	openvswitch-switch # forward/cni
	passt slirp4netns tayga # bench
	chromium # opens the pages of reports
)
# Container engines, what their images are made of, and what benches load them with.
engines=(docker.io containerd runc crun podman containernetworking-plugins iptables busybox-static sysbench)
# A Rust new enough for tokio, with the source of its standard library. Debian 12
# has it under another name, which takes the place of the usual one.
# shellcheck source=/dev/null
if [[ $(. /etc/os-release && echo "${VERSION_ID:-}") == 12 ]]; then
	programs+=(cargo-web rustc-web rust-web-src)
else
	programs+=(cargo rustc rust-src)
	engines+=(docker-cli)
fi

# Installs those of its arguments that are not there.
install() {
	local missing=() p
	for p in "$@"; do
		dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^ii' || missing+=("$p")
	done
	((${#missing[@]})) || return 0
	if ((EUID != 0)); then
		echo "deps: run as root, or install: ${missing[*]}" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	[[ -n ${updated:-} ]] || apt-get update -qq
	updated=yes
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Servers are only wanted as programs.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy && -w /usr/sbin ]]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
	trap 'rm -f "$policy"' EXIT
fi

# Any Go from 1.21 fetches the version that go.mod asks for by itself, unless it
# was told not to. Debian 12's is older: it can still fetch that Go as a module.
want=$(awk '$1 == "go" { print $2 }' go.mod)
have=$(go env GOVERSION 2>/dev/null | sed 's/^go//' || true)
newer() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | tail -n 1) == "$2" ]]; }

# Fetches Go, if there is none that is new enough, and all modules.
fetch_go() {
	if [[ -z $have ]] || ! newer "$want" "$have"; then
		local version dir
		version="v0.0.1-go$want.linux-$(dpkg --print-architecture)"
		dir=$(cd / && GOFLAGS=-mod=mod go mod download -json "golang.org/toolchain@$version" |
			sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
		chmod -R u+w "$dir"
		chmod +x "$dir"/bin/* "$dir"/pkg/tool/*/*
		mkdir -p .cache
		ln -sfn "$dir" .cache/go
		PATH=$PWD/.cache/go/bin:$PATH
	fi
	go mod download
	go mod download -modfile=tools/go.mod
	go mod download -modfile=tools/cni/go.mod
	go mod download -modfile=tools/nfpm.mod
	go -C kube mod download
	go mod download -modfile=tools/controller-gen/go.mod
}

[[ $(dpkg --print-architecture) != amd64 ]] || packages+=(gcc-multilib) # 32-bit programs, in tests
[[ -n $have ]] || packages+=(golang-go)
install "${packages[@]}"
fetch_go & # needs the network, while what follows needs the disk and a CPU
fetching=$!
# The sanitizers and the fuzzer of whichever clang this is.
install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
if [[ ${1:-} == bench-agent ]]; then
	install runc containernetworking-plugins iptables
elif [[ ${1:-} == bench-charge ]]; then
	install containerd runc busybox-static sysbench
elif [[ ${1:-} == bench-forward ]]; then
	install openvswitch-switch
elif [[ ${1:-} == bench-offload ]]; then
	install openvswitch-switch containernetworking-plugins
elif [[ ${1:-} == bench-peers ]]; then
	install passt slirp4netns "${engines[@]}" libseccomp-dev # bypass4netns is built
elif [[ ${1:-} == bench-translate ]]; then
	install tayga haproxy dnsmasq-base unbound
elif [[ ${1:-} == bench-vm ]]; then
	install user-mode-linux qemu-system-x86 kmod xz-utils busybox-static slirp4netns haproxy dnsmasq-base
elif [[ ${1:-} != demo ]]; then
	[[ ${1:-} != kernels ]] || install qemu-system-x86 kmod xz-utils busybox-static
	[[ ${1:-} != engines ]] || install libseccomp-dev # runc is built
	# Tests run a cluster where its programs have been built.
	[[ ${1:-} != kube && ! -x ${TSUGIKI_KUBE_CACHE:-.cache/kube}/kubelet ]] || install etcd-server conntrack conmon libseccomp-dev libsqlite3-dev
	install "${programs[@]}" "${engines[@]}"
	[[ $(dpkg --print-architecture) != amd64 ]] || install user-mode-linux kmod # test/vm
	if [[ $(dpkg --print-architecture) == amd64 ]]; then
		install libc6-dev-i386 "lib32gcc-$(gcc -dumpversion)-dev" # 32-bit programs
	fi
	test/e2e/testdata/tokio/build.sh "$PWD/.cache/tokio"
fi
wait "$fetching"

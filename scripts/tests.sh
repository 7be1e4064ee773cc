#!/bin/bash
# Runs the tests of all packages and reports. Its arguments are flags of go test.
#
# Most packages share the machine, three at a time: many tests wait. The packages with the
# largest budgets (.ci/budget) start first, so test/e2e, which takes longest, runs beside all
# others. The packages of .ci/serial follow, one at a time. TSUGIKI_PACKAGES are other packages
# than all, and TSUGIKI_MODULE is the folder of another module than the root's. TSUGIKI_SHOW is a
# test whose subtests are shown as they end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# The first words of a file's lines.
words() { awk '!/^#/ && NF { print $1 }' "$1"; }

# Those packages of its standard input that the file has, or with -v has not.
listed() { grep -Fx "$@" -f <(words .ci/serial | sed "s|^|$module/|") || true; }

# Runs a command with a BPF file system of its own, where starts of tsugiki share kernel programs.
# Without one each start of tsugiki has the kernel verify them: a third of the tests' CPU time.
with_bpffs() { unshare --mount --propagation private sh -c 'mount -t bpf bpf /sys/fs/bpf; exec "$@"' sh "$@"; }

# Neither a test's user nor the tests call make as a part of this make.
run() {
	with_bpffs env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL TSUGIKI_BIN="$PWD/bin" \
		go -C "$folder" test -count=1 -vet=off -json "$@"
}

folder=${TSUGIKI_MODULE:-.}
module=$(go -C "$folder" list -m) || exit
read -ra packages <<<"${TSUGIKI_PACKAGES:-./...}"
all=$(go -C "$folder" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${packages[@]}") || exit
long=$(awk '!/^#/ && NF && $1 != "default"' .ci/budget | sort -rnk 2 | awk -v m="$module" '{ print m "/" $1 }')
order=$(printf '%s\n' "$long" "$all" | grep -Fx "$all" | awk '!seen[$0]++')
mapfile -t shared < <(listed -v <<<"$order")
mapfile -t serial < <(listed <<<"$order")

rm -rf .cache/test-logs
{
	run -p 3 "$@" "${shared[@]}"
	status=$?
	((${#serial[@]})) || exit "$status"
	run -p 1 "$@" "${serial[@]}" && exit "$status"
} | go run ./internal/testreport -skips .ci/skips -budget .ci/budget -logs .cache/test-logs -show "${TSUGIKI_SHOW:-}"

#!/bin/bash
# test.sh  runs tests of the parts that depend on the kernel on other kernels, with
# cgroups mounted in other ways, and ends with a table of what came of it.
#
#	KERNELS   of Debian ("6.1 6.12")
#	MODES     of cgroups ("v2 v1"); hybrid is one too
#	PACKAGES  whose tests are run
#	RUN       which tests, as of go test -run; SHORT=1 is go test -short
#
# A processor that is translated is slow: tests that measure time may fail for that.
set -euo pipefail
cd "$(dirname "$0")/../.."
PACKAGES=${PACKAGES:-internal/kernel internal/cgroup charge/balance charge/bandwidth charge/journal charge/helper
	charge/ledger charge/slots charge/enforce charge/softirq charge/shared charge/accounts policy policy/enforcer test/kernel}
scripts/deps.sh kernels
tests=.cache/kernels/tests
export TSUGIKI_BIN=$PWD/bin
go build -o $tests/test2json cmd/test2json
go build -o $tests/testreport ./internal/testreport
for package in $PACKAGES; do
	go test -c -o "$tests/$package.test" "./$package"
done

table=() status=0
for version in ${KERNELS:-6.1 6.12}; do
	kernel=$(scripts/kernels/fetch.sh "$version")
	for mode in ${MODES:-v2 v1}; do
		echo "== Linux $version, cgroup $mode"
		for package in $PACKAGES; do
			# Without cgroup v2 only charging works.
			[[ $mode != v1 || $package == charge/* ]] || continue
			result=$tests/$version-$mode-${package//\//-}
			verdict=ok
			scripts/kernels/vm.sh "$kernel" "$mode" scripts/kernels/run.sh "$package" >"$result.json" || verdict=FAIL
			$tests/testreport -skips .ci/skips-kernels <"$result.json" | tee "$result.txt" || verdict=FAIL
			[[ $verdict == ok ]] || status=1
			table+=("$(printf '%-6s %-7s %-18s %-5s %s' "$version" "$mode" "$package" $verdict "$(tail -n 1 "$result.txt")")")
		done
	done
done
printf '%s\n' "${table[@]}"
exit $status

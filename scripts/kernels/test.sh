#!/bin/bash
# test.sh  runs tests of the parts that depend on the kernel on other kernels, with cgroups mounted
# in other ways, and ends with a table of the results. A kernel and a mode are one virtual machine.
#
#	KERNELS   of Debian, or 5.15 of Ubuntu ("5.15 6.1 6.12")
#	MODES     of cgroups ("v2 v1 hybrid")
#	PACKAGES  whose tests are run; those of the file packages that work in the mode
#	RUN       which tests, as of go test -run; SHORT=1 is go test -short
#	JOBS      virtual machines at once (2)
#
# A translated processor is slow: TSUGIKI_SLOW (5) is how much longer tests wait for a hang.
set -euo pipefail
cd "$(dirname "$0")/../.."
list=$(sed '/^#/d; /^$/d' scripts/kernels/packages)
scripts/deps.sh kernels
tests=.cache/kernels/tests
export TSUGIKI_BIN=$PWD/bin TSUGIKI_SLOW=${TSUGIKI_SLOW:-5} TSUGIKI_PROGRAMS=$PWD/.cache/kernels/programs
rm -rf "$tests" "$TSUGIKI_PROGRAMS"
go build -o $tests/test2json cmd/test2json
go build -o $tests/testreport ./internal/testreport
for package in ${PACKAGES:-$(awk '{ print $1 }' <<<"$list")}; do
	go test -c -o "$tests/$package.test" "./$package"
done
[[ ! -e $tests/test/e2e.test ]] || (cd test/e2e && "$OLDPWD/$tests/test/e2e.test" -test.run '^TestProgramsAreBuilt$')

# The packages that are run in a mode of cgroups.
packages() {
	if [[ -n ${PACKAGES:-} ]]; then
		echo "$PACKAGES"
	else
		awk -v mode="$1" 'index("," $2 ",", "," mode ",") { print $1 }' <<<"$list"
	fi
}

# The skips that are expected of a kernel and a mode, for testreport.
skips() {
	awk -v kernel="$1" -v mode="$2" '!/^#/ && (index("," $1 ",", "," kernel ",") || index("," $1 ",", "," mode ",")) {
		$1 = ""
		print
	}' scripts/kernels/skips
}

# Tests on one kernel in one mode. Results go into files.
boot() {
	local version=$1 mode=$2 kernel package result=$tests/$1-$2 verdict=ok begin=$SECONDS cpu
	kernel=$(scripts/kernels/fetch.sh "$version")
	skips "$version" "$mode" >"$result.skips"
	# shellcheck disable=SC2046 # packages are words
	scripts/kernels/vm.sh "$kernel" "$mode" scripts/kernels/run.sh $(packages "$mode") >"$result.json" 2>"$result.err" || verdict=FAIL
	for package in $(packages "$mode"); do
		local of=$result-${package//\//-} row=ok
		grep -F "\"Package\":\"$package\"" "$result.json" | $tests/testreport -skips "$result.skips" >"$of.txt" || row=FAIL verdict=FAIL
		printf '%-6s %-7s %-18s %-5s %s\n' "$version" "$mode" "$package" $row "$(tail -n 1 "$of.txt")" >>"$result.row"
		[[ $row == ok ]] || cat "$of.txt"
	done
	times >"$result.times" # the second line: of the virtual machine
	cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%d", 60 * $1 + $2 + 60 * $3 + $4 }' "$result.times")
	printf '%-6s %-7s %-18s %-5s %d s, %d s of CPU time\n' "$version" "$mode" all $verdict $((SECONDS - begin)) "$cpu" >>"$result.row"
	cat "$result.err"
}

for version in ${KERNELS:-5.15 6.1 6.12}; do
	scripts/kernels/fetch.sh "$version" >/dev/null
	for mode in ${MODES:-v2 v1 hybrid}; do
		while (($(jobs -rp | wc -l) >= ${JOBS:-2})); do wait -n || true; done
		boot "$version" "$mode" &
		cells+=("$tests/$version-$mode.row")
	done
done
wait
cat "${cells[@]}"
for cell in "${cells[@]}"; do
	tail -n 1 "$cell" | grep -qE ' all +ok '
done

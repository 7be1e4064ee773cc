#!/bin/bash
# run.sh PACKAGE...  runs the test binaries that test.sh has built, each in the directory of its
# package, and prints what go test -json would. The file packages says which tests, unless RUN does.
packages=$(realpath "$(dirname "$0")")/packages
tests=$PWD/.cache/kernels/tests
for package in "$@"; do
	read -r _ _ run skip _ < <(grep "^$package " "$packages") || run=- skip=-
	[[ $run != - ]] || run=.
	[[ $skip != - && -z ${RUN:-} ]] || skip='^$'
	(cd "$package" && "$tests/test2json" -t -p "$package" "$tests/$package.test" -test.v=test2json \
		-test.timeout "${TIMEOUT:-20m}" -test.run "${RUN:-$run}" -test.skip "$skip" ${SHORT:+-test.short}) || status=1
done
exit "${status:-0}"

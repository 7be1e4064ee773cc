#!/bin/bash
# run.sh PACKAGE...  runs the test binaries that test.sh has built, each in the
# directory of its package, and writes what go test -json would.
tests=$PWD/.cache/kernels/tests
for package in "$@"; do
	(cd "$package" && "$tests/test2json" -t -p "$package" "$tests/$package.test" -test.v=test2json \
		-test.timeout "${TIMEOUT:-50m}" ${RUN:+-test.run "$RUN"} ${SHORT:+-test.short}) || status=1
done
exit "${status:-0}"

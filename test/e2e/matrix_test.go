package e2e

import "github.com/tsugiki/tsugiki/internal/testkit"

// A matrix of containers and cases is whole in the soak. In make test it has each container and
// each case once.

// pair is a container and a case of a test.
type pair struct {
	variant string
	number  int
}

// cover picks the pairs that a test runs, of those that can be: of each case one, and of each
// variant one. In the soak it picks all. It returns whether it has picked a pair.
func cover(variants []variant, cases int, can func(v variant, number int) bool) func(v variant, number int) bool {
	picked, served := map[pair]bool{}, map[string]bool{}
	pick := func(v variant, number int) {
		picked[pair{v.name, number}], served[v.name] = true, true
	}
	for number := range cases {
		var able []variant
		for _, v := range variants {
			if can(v, number) {
				able = append(able, v)
			}
		}
		for i, v := range able {
			if testkit.Soaking() || i == number%len(able) {
				pick(v, number)
			}
		}
	}
	for i, v := range variants {
		for number := range cases {
			if other := (i + number) % cases; !served[v.name] && can(v, other) {
				pick(v, other)
			}
		}
	}
	return func(v variant, number int) bool { return picked[pair{v.name, number}] }
}

// always is for cases that can be in each container.
func always(variant, int) bool { return true }

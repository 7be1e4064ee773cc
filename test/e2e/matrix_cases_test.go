package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Nothing is left out of both make test and the soak: each container and each case that can be
// is picked, and nothing that cannot be.
func TestCover(t *testing.T) {
	t.Parallel()
	odd := func(v variant, number int) bool { return v.name != "0" || number%2 == 1 }
	for _, can := range []func(variant, int) bool{always, odd} {
		for count := 1; count <= 6; count++ {
			var all []variant
			for i := range count {
				all = append(all, variant{name: fmt.Sprint(i)})
			}
			for cases := 2; cases <= 13; cases++ {
				picked := cover(all, cases, can)
				for number := range cases {
					able := slices.ContainsFunc(all, func(v variant) bool { return can(v, number) })
					if has := slices.ContainsFunc(all, func(v variant) bool { return picked(v, number) }); has != able {
						t.Errorf("%d variants, %d cases: case %d is picked: %v, want %v", count, cases, number, has, able)
					}
				}
				pairs := 0
				for _, v := range all {
					own := 0
					for number := range cases {
						if picked(v, number) {
							own++
							if !can(v, number) {
								t.Errorf("%d variants, %d cases: %s has case %d, which it cannot", count, cases, v.name, number)
							}
						}
					}
					if own == 0 {
						t.Errorf("%d variants, %d cases: %s has none", count, cases, v.name)
					}
					pairs += own
				}
				if most := count + cases; !testkit.Soaking() && pairs > most {
					t.Errorf("%d variants, %d cases: %d pairs, want at most %d", count, cases, pairs, most)
				}
			}
		}
	}
}

// In make test, each mode has a container and each container a mode.
func TestInModes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"TestEven", "TestOddly"} {
		list := inModes(name, both)
		for _, m := range modes {
			if !slices.ContainsFunc(list, func(v variant) bool { return v.mode.name == m.name }) {
				t.Errorf("%s: none in mode %s", name, m.name)
			}
		}
		for _, b := range both {
			if !slices.ContainsFunc(list, func(v variant) bool { return v.bridge == b.bridge }) {
				t.Errorf("%s: none is %s", name, b.name)
			}
		}
	}
}

package shim

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPreload(t *testing.T) {
	for _, tt := range []struct {
		name      string
		env, want []string
	}{
		{"no environment", nil, []string{"LD_PRELOAD=/l.so"}},
		{"no list", []string{"A=B"}, []string{"A=B", "LD_PRELOAD=/l.so"}},
		{"an empty list", []string{"LD_PRELOAD=", "A=B"}, []string{"LD_PRELOAD=/l.so", "A=B"}},
		{"after others", []string{"LD_PRELOAD=a.so:b.so"}, []string{"LD_PRELOAD=a.so:b.so:/l.so"}},
		{"there already", []string{"LD_PRELOAD=a.so:/l.so"}, []string{"LD_PRELOAD=a.so:/l.so"}},
		{"there already, after a space", []string{"LD_PRELOAD=a.so /l.so b.so"}, []string{"LD_PRELOAD=a.so /l.so b.so"}},
		{"a longer name", []string{"LD_PRELOAD=/l.so.1"}, []string{"LD_PRELOAD=/l.so.1:/l.so"}},
		{"two lists", []string{"LD_PRELOAD=a.so", "LD_PRELOAD=/l.so"}, []string{"LD_PRELOAD=a.so:/l.so", "LD_PRELOAD=/l.so"}},
		{"another variable", []string{"LD_PRELOADX=a.so"}, []string{"LD_PRELOADX=a.so", "LD_PRELOAD=/l.so"}},
	} {
		before := slices.Clone(tt.env)
		if diff := cmp.Diff(tt.want, Preload(tt.env, "/l.so")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(before, tt.env); diff != "" {
			t.Errorf("%s: Preload changed its argument:\n%s", tt.name, diff)
		}
	}
}

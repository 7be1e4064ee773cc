package grant

import (
	"slices"
	"strings"
	"testing"
)

// Rules whose endpoint may come are left out. Other reasons refuse the pod all the same.
func TestAwaits(t *testing.T) {
	const rules = `{podSelector: {}, ingress: [{endpoint: late, port: 81}, {endpoint: web, port: 80}], egress: [{endpoint: late, to: [10.0.0.0/8]}, {endpoint: `
	for name, tt := range map[string]struct {
		policy  string
		mayCome func(string) bool
		refused string
	}{
		"it may come":                   {rules + `out, to: [10.1.0.0/16]}]}`, func(name string) bool { return name == "late" }, ""},
		"another one may not":           {rules + `never, to: [10.1.0.0/16]}]}`, func(name string) bool { return name == "late" }, "GraftPolicy p, egress 1: there is no GraftEndpoint never"},
		"another is of others":          {rules + `none, to: [10.1.0.0/16]}]}`, func(string) bool { return true }, "GraftPolicy p, egress 1: GraftEndpoint none is not for this pod: its allowedPods select neither namespace shop nor the pod's labels there"},
		"another rule would lead there": {rules + `out, to: [10.0.0.0/8]}]}`, func(string) bool { return true }, "GraftPolicy p, egress 0: there is no GraftEndpoint late"},
		"too many":                      {`{podSelector: {}, egress: [{endpoint: late, to: [` + strings.Repeat("10.0.0.0/8, ", awaitedMax) + `11.0.0.0/8]}]}`, func(string) bool { return true }, "GraftPolicy p, egress 0: there is no GraftEndpoint late"},
		"nobody says":                   {rules + `out, to: [10.1.0.0/16]}]}`, nil, "GraftPolicy p, ingress 0: there is no GraftEndpoint late"},
	} {
		q := question(t, web, tt.policy)
		q.MayCome = tt.mayCome
		d := Decide(q)
		if d.Grant.Refused != tt.refused {
			t.Errorf("%s: refused for %q, want %q", name, d.Grant.Refused, tt.refused)
		}
		if tt.refused != "" {
			continue
		}
		if r := d.Grant.Containers["nginx"]; len(r.Ingress) != 1 || len(r.Egress) != 1 || !slices.Equal(d.Awaits, []string{"late"}) {
			t.Errorf("%s: rules %+v, awaits %v; want those of the endpoints that there are", name, r, d.Awaits)
		}
	}
}

package rules

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/api"
)

// Where IPv4 is translated, an ingress rule for a range becomes one for each port.
func TestParseTranslatedRanges(t *testing.T) {
	for _, tt := range []struct {
		rule string
		want []string // a port, and where it leads; or an error
		err  string
	}{
		{rule: "0.0.0.0:80=[2001:db8::1]:8080", want: []string{"80 [2001:db8::1]:8080"}},
		{rule: "0.0.0.0:2000-2001=[2001:db8::1]:2000-2001", want: []string{"2000 [2001:db8::1]:2000", "2001 [2001:db8::1]:2001"}},
		{rule: "0.0.0.0:2000-2001/tcp=[2001:db8::1]", want: []string{"2000 [2001:db8::1]:2000", "2001 [2001:db8::1]:2001"}},
		{rule: "0.0.0.0:2000-2064=[2001:db8::1]", err: "65 ports"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			r, err := Parse(api.Rules{Ingress: []string{tt.rule}, Translate: &api.Translate{}})
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("%v, want %q", err, tt.err)
			}
			var got []string
			for _, in := range r.Ingress {
				at := netip.AddrPortFrom(in.Endpoint.Addr, in.HostPort(in.Ports.First))
				got = append(got, in.Ports.String()+" "+at.String())
			}
			if err == nil && !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

package rules

import (
	"errors"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy"
)

// What docker run -p publishes, a rule must not move away unseen.
func TestCheckPublished(t *testing.T) {
	for name, c := range map[string]struct {
		ingress, published string
		alone              bool   // it has only a loopback
		want               string // part of the error; empty: there is none
	}{
		"another port":             {ingress: "0.0.0.0:80=198.51.100.1", published: "8080/tcp"},
		"the port":                 {ingress: "0.0.0.0:80=198.51.100.1", published: "80/tcp", want: "+own"},
		"a range":                  {ingress: "0.0.0.0:80-90=198.51.100.1", published: "85/tcp", want: "port 85/tcp"},
		"both families":            {ingress: "[::]:80=[2001:db8::1]", published: "80/tcp", want: "+own"},
		"both places":              {ingress: "0.0.0.0:80+own=198.51.100.1", published: "80/tcp"},
		"both places of one rule":  {ingress: "[::]:80=[2001:db8::1] 0.0.0.0:80+own=198.51.100.1", published: "80/tcp"},
		"another protocol":         {ingress: "0.0.0.0:80/udp=198.51.100.1", published: "80/tcp"},
		"datagrams":                {ingress: "0.0.0.0:53=198.51.100.1", published: "53/udp", want: "leave out -p"},
		"datagrams in both places": {ingress: "0.0.0.0:53+own=198.51.100.1", published: "53/tcp 53/udp", want: "53/udp"},
		"the loopback":             {ingress: "127.0.0.1:80=198.51.100.1", published: "80/tcp"},
		"nothing but a loopback":   {ingress: "0.0.0.0:80=198.51.100.1", published: "80/tcp", alone: true},
		"neither TCP nor UDP":      {ingress: "0.0.0.0:80=198.51.100.1", published: "80/sctp x/tcp"},
	} {
		parsed, err := Parse(api.Rules{Ingress: strings.Fields(c.ingress)})
		if err != nil {
			t.Fatal(err)
		}
		r := api.Registration{Engine: "docker", LoopbackOnly: c.alone, Published: strings.Fields(c.published)}
		err = CheckPublished(&r, &parsed)
		if c.want == "" && err == nil {
			continue
		}
		if c.want == "" || !errors.Is(err, policy.ErrRule) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

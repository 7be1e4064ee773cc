package main

import (
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// What -p means is a rule that can be read.
func TestPublished(t *testing.T) {
	for _, tt := range []struct{ in, want, says string }{
		{"8080:80", "0.0.0.0:80=0.0.0.0:8080 [::]:80=[::]:8080", ""},
		{"53:53/udp", "0.0.0.0:53/udp=0.0.0.0:53 [::]:53/udp=[::]:53", ""},
		{"127.0.0.1:8080:80/tcp", "0.0.0.0:80/tcp=127.0.0.1:8080", ""},
		{"[::1]:8080:80", "[::]:80=[::1]:8080", ""},
		{"8000-8009:8000-8009", "0.0.0.0:8000-8009=0.0.0.0:8000-8009 [::]:8000-8009=[::]:8000-8009", ""},
		{"80", "", "host's port is missing"},
		{"8080:", "", "neither a port"},
		{"8080:http", "", "neither a port"},
		{"web:8080:80", "", `"web" is no address`},
		{"8080:80/sctp", "", "neither a port"},
		{":80", "", "port"},
		{"127.0.0.1::80", "", "port"},
		{"8000-8009:80", "", "do not fit"},
	} {
		list, err := published(tt.in, true)
		if err == nil {
			_, err = rules.Parse(api.Rules{Ingress: list})
		}
		if tt.says == "" && (err != nil || strings.Join(list, " ") != tt.want) || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("-p %s: %q, %v", tt.in, list, err)
		}
	}
	if list, err := published("8080:80", false); err != nil || len(list) != 1 {
		t.Errorf("without IPv6: %q, %v", list, err)
	}
}

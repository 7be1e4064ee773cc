package endpoint

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := []struct {
		in   string
		want Endpoint
	}{
		{"ep-http type ipv4 addr 10.0.0.2 port 80", Endpoint{Name: "ep-http", Type: IPv4, Addr: netip.MustParseAddr("10.0.0.2"), Port: PortRange{80, 80}}},
		{"out type ipv4 addr 0.0.0.0 port dynamic", Endpoint{Name: "out", Type: IPv4, Addr: netip.IPv4Unspecified()}},
		{"o6 type ipv6 addr 2001:db8::1 port 8000-8999 netns blue", Endpoint{Name: "o6", Type: IPv6, Addr: netip.MustParseAddr("2001:db8::1"), Port: PortRange{8000, 8999}, Netns: "blue"}},
		{"un type unix path /run/x.sock", Endpoint{Name: "un", Type: Unix, Path: "/run/x.sock"}},
		{"af type ipv6 addr :: port dynamic netns blue nameable", Endpoint{Name: "af", Type: IPv6, Addr: netip.IPv6Unspecified(), Netns: "blue", Nameable: true}},
		{"au type unix path /run/x.sock nameable", Endpoint{Name: "au", Type: Unix, Path: "/run/x.sock", Nameable: true}},
	}
	for _, tt := range tests {
		got, err := Parse(tt.in)
		if err != nil {
			t.Errorf("Parse(%q): %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, *got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("Parse(%q): %s", tt.in, diff)
		}
		if got.String() != tt.in {
			t.Errorf("String() is %q, want %q", got, tt.in)
		}
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ in, says string }{
		{"", "it is empty"},
		{"a-name-of-16-byte type ipv4 addr 1.2.3.4 port 1", "at most 15"},
		{"a/b type ipv4 addr 1.2.3.4 port 1", `'/'`},
		{"a addr 1.2.3.4 port 1", `"type" is missing`},
		{"a type ipv5", "unknown type"},
		{"a type ipv4 addr 1.2.3.4", `"port" is missing`},
		{"a type ipv4 port 1", `"addr" is missing`},
		{"a type ipv4 addr ::1 port 1", "no ipv4 address"},
		{"a type ipv6 addr 1.2.3.4 port 1", "no ipv6 address"},
		{"a type ipv6 addr ::ffff:1.2.3.4 port 1", "no ipv6 address"},
		{"a type ipv6 addr fe80::1%eth0 port 1", "no ipv6 address"},
		{"a type ipv4 addr 1.2.3.4 port 65536", "0-65535"},
		{"a type ipv4 addr 1.2.3.4 port 9-8", "0-65535"},
		{"a type ipv4 addr 1.2.3.4 port 1 port 2", "given twice"},
		{"a type ipv4 addr 1.2.3.4 port", "needs a value"},
		{"a type ipv4 addr 1.2.3.4 porq 1", "unknown word"},
		{"a type ipv4 addr 1.2.3.4 port 1 nameable yes", "no value"},
		{"a type ipv4 nameable addr 1.2.3.4 port 1", "the last word"},
		{"a type ipv4 nameable", `"addr" is missing`},
		{"a type unix path x", "start with a slash"},
		{"a type unix", `"path" is missing`},
		{"a type unix path /x port 1", "no port"},
		{"a type unix path /" + strings.Repeat("x", 107), "at most 107"},
		{"a type ipv4 addr 1.2.3.4 port 1 path /x", "no path"},
	}
	for _, tt := range tests {
		_, err := Parse(tt.in)
		if !errors.Is(err, ErrGrammar) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("Parse(%q): %v; want ErrGrammar that says %q", tt.in, err, tt.says)
		}
	}
}

func TestSet(t *testing.T) {
	var s Set
	if _, err := s.Get("a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("empty set: %v", err)
	}
	if err := s.Add(&Endpoint{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(&Endpoint{Name: "a"}); err == nil {
		t.Error("a name was taken twice")
	}
	if e, err := s.Get("a"); err != nil || e.Name != "a" {
		t.Errorf("Get: %v, %v", e, err)
	}
	if _, err := s.Get("b"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "there is a") {
		t.Errorf("Get of an unknown name: %v", err)
	}
}

// What Parse takes, String writes, and Parse reads back as the same.
func FuzzParse(f *testing.F) {
	f.Add("ep-http type ipv4 addr 10.0.0.2 port 80")
	f.Add("o6 type ipv6 addr 2001:db8::1 port 8000-8999 netns blue")
	f.Add("un type unix path /run/x.sock nameable")
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(e.String())
		if err != nil || *again != *e {
			t.Errorf("%q: %+v became %+v, %v", s, e, again, err)
		}
	})
}

func TestParseAll(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []string // as String writes them; none: an error that says says
		says string
	}{
		{"web type ipv4 addr 198.51.100.1 port 80", []string{"web type ipv4 addr 198.51.100.1 port 80"}, ""},
		{"web type ip addr 198.51.100.1 addr6 2001:db8::1 port 80 nameable", []string{
			"web.4 type ipv4 addr 198.51.100.1 port 80 nameable", "web.6 type ipv6 addr 2001:db8::1 port 80 nameable",
		}, ""},
		{"web type ip addr 198.51.100.1 addr6 198.51.100.1 port 80", nil, "198.51.100.1"},
		{"web type ip addr 198.51.100.1 addr6", nil, "ip"},
	} {
		all, err := ParseAll(tt.in)
		if tt.want == nil {
			if !errors.Is(err, ErrGrammar) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("ParseAll(%q): %v; want ErrGrammar that says %q", tt.in, err, tt.says)
			}
			continue
		}
		var got []string
		for _, e := range all {
			got = append(got, e.String())
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("ParseAll(%q): %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	if got := Type(99).String(); got != "type 99" {
		t.Errorf("an unknown type is %q", got)
	}
}

package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/policy"
)

func TestRuleTexts(t *testing.T) {
	const web, out = "web type ipv4 addr 198.51.100.1 port 80", "out type ipv4 addr 0.0.0.0 port dynamic"
	for _, tt := range []struct {
		name     string
		in, want api.Rules
	}{
		{"nothing", api.Rules{}, api.Rules{Mode: "auto"}},
		{"mode", api.Rules{Mode: "seccomp"}, api.Rules{Mode: "seccomp"}},
		{
			"names",
			api.Rules{Mode: "preload", Endpoints: []string{web, out}, Ingress: []string{"0.0.0.0:8080=web"}, Egress: []string{"0.0.0.0/0=out"}},
			api.Rules{Mode: "preload", Endpoints: []string{out, web}, Ingress: []string{"0.0.0.0:8080=web"}, Egress: []string{"0.0.0.0/0=out"}},
		},
		{
			"addresses",
			api.Rules{Ingress: []string{"0.0.0.0:80=198.51.100.1:8080"}, Egress: []string{"0.0.0.0/0=198.51.100.1", "10.0.0.0/8=198.51.100.1"}},
			api.Rules{
				Mode:      "auto",
				Endpoints: []string{"e-1 type ipv4 addr 198.51.100.1 port dynamic", "i-1 type ipv4 addr 198.51.100.1 port 8080"},
				Ingress:   []string{"0.0.0.0:80=i-1"}, Egress: []string{"0.0.0.0/0=e-1", "10.0.0.0/8=e-1"},
			},
		},
	} {
		rules, err := Parse(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, rules.Texts()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Every text that is wrong is said, with its place.
func TestRuleTextsSayWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   api.Rules
		want []string // place and a part of the error
	}{
		{"mode", api.Rules{Mode: "magic"}, []string{`mode 0: unknown mode "magic"; there are auto, preload and seccomp`}},
		{
			"endpoints, and nothing about rules that name them",
			api.Rules{Endpoints: []string{"a type ipx", "b type unix path /b", "b type unix path /c"}, Ingress: []string{"0.0.0.0:1=a"}},
			[]string{`endpoints 0: bad endpoint "a type ipx"`, `endpoints 2: bad endpoint "b"`},
		},
		{
			"rules",
			api.Rules{Mode: "?", Ingress: []string{"0.0.0.0:1=::1", "0.0.0.0:2=1.2.3.4"}, Egress: []string{"0.0.0.0/0=1.2.3.4", "0.0.0.0/0", "::/0=x"}},
			[]string{"mode 0: unknown mode", `ingress 0: bad rule -i "0.0.0.0:1=::1"`, `egress 1: bad rule -e "0.0.0.0/0"`, `egress 2: bad rule -e "::/0=x"`},
		},
	} {
		_, err := Parse(tt.in)
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			continue
		}
		var got []string
		for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
			var te *TextError
			if !errors.As(err, &te) {
				t.Fatalf("%s: %v is no TextError", tt.name, err)
			}
			got = append(got, fmt.Sprintf("%s %d: %v", te.Key, te.Index, err))
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], tt.want[i]) {
				t.Errorf("%s: %q, want %q", tt.name, got[i], tt.want[i])
			}
		}
	}
	if _, err := Parse(api.Rules{Ingress: []string{"0.0.0.0:1"}}); !errors.Is(err, policy.ErrRule) {
		t.Errorf("%v is no ErrRule", err)
	}
}

func TestAnnotationRules(t *testing.T) {
	many := func(n int) string { return strings.Repeat("::/0=::,", n) }
	for _, tt := range []struct {
		name  string
		in    map[string]string
		want  api.Rules
		found bool
		says  []string
	}{
		{name: "none"},
		{name: "others", in: map[string]string{"tsugiki.dev/name": "web", "example.com/ingress": "x", "tsugiki.development": "x"}},
		{name: "mode alone", in: map[string]string{"tsugiki.dev/mode": " auto\n"}, want: api.Rules{Mode: "auto"}, found: true},
		{
			name: "lists",
			in: map[string]string{
				"tsugiki.dev/ingress":   "0.0.0.0:80=198.51.100.1:8080, 0.0.0.0:81=web;\n\t[::]:80=[2001:db8::1]\r\n,,",
				"tsugiki.dev/egress":    "0.0.0.0/0=198.51.100.1",
				"tsugiki.dev/endpoints": "\n  web type ipv4 addr 198.51.100.1 port 81\n  db type unix path /run/db\n",
			},
			want: api.Rules{
				Ingress:   []string{"0.0.0.0:80=198.51.100.1:8080", "0.0.0.0:81=web", "[::]:80=[2001:db8::1]"},
				Egress:    []string{"0.0.0.0/0=198.51.100.1"},
				Endpoints: []string{"web type ipv4 addr 198.51.100.1 port 81", "db type unix path /run/db"},
			},
			found: true,
		},
		{
			name: "translation",
			in:   map[string]string{"tsugiki.dev/translate": " true\n", "tsugiki.dev/ipv6": "2001:db8::9 ", "tsugiki.dev/dns": "[2001:db8::53]:53, 192.0.2.1:53"},
			want: api.Rules{Translate: &api.Translate{IPv6: "2001:db8::9", DNS: []string{"[2001:db8::53]:53", "192.0.2.1:53"}}}, found: true,
		},
		{
			name: "relayed ports",
			in:   map[string]string{"tsugiki.dev/translate": "true", "tsugiki.dev/ftp": " none ", "tsugiki.dev/sip": " 5060; 5062\n"},
			want: api.Rules{Translate: &api.Translate{FTP: "none", SIP: "5060,5062"}}, found: true,
		},
		{name: "ports of SIP alone", in: map[string]string{"tsugiki.dev/sip": "5060"}, found: true, says: []string{"need tsugiki.dev/translate: true"}},
		{name: "ports of FTP alone", in: map[string]string{"tsugiki.dev/ftp": "21", "tsugiki.dev/translate": "false"}, found: true, says: []string{"need tsugiki.dev/translate: true"}},
		{name: "no translation", in: map[string]string{"tsugiki.dev/translate": "false"}, found: true},
		{name: "half a translation", in: map[string]string{"tsugiki.dev/translate": "yes"}, found: true, says: []string{`tsugiki.dev/translate is "yes"; write true or false`}},
		{name: "an address alone", in: map[string]string{"tsugiki.dev/ipv6": "2001:db8::9"}, found: true, says: []string{"need tsugiki.dev/translate: true"}},
		{name: "resolvers alone", in: map[string]string{"tsugiki.dev/dns": ":53", "tsugiki.dev/translate": "false"}, found: true, says: []string{"need tsugiki.dev/translate: true"}},
		{name: "blank", in: map[string]string{"tsugiki.dev/egress": " , \n"}, found: true},
		{
			name: "unknown", in: map[string]string{"tsugiki.dev/egres": "x", "tsugiki.dev/": "y"}, found: true,
			says: []string{`"tsugiki.dev/egres"`, `"tsugiki.dev/"`, "there are tsugiki.dev/dns, tsugiki.dev/egress, tsugiki.dev/endpoints, tsugiki.dev/ftp, tsugiki.dev/ingress, tsugiki.dev/ipv6, tsugiki.dev/mode, tsugiki.dev/name, tsugiki.dev/name-rules, tsugiki.dev/sip and tsugiki.dev/translate"},
		},
		{name: "as many as may be", in: map[string]string{"tsugiki.dev/egress": many(64)}, want: api.Rules{Egress: strings.Split(strings.TrimSuffix(many(64), ","), ",")}, found: true},
		{name: "too many", in: map[string]string{"tsugiki.dev/egress": many(65)}, found: true, says: []string{"tsugiki.dev/egress has 65 entries, at most 64"}},
		{name: "too long", in: map[string]string{"tsugiki.dev/mode": strings.Repeat("x", 16<<10+1)}, found: true, says: []string{"tsugiki.dev/mode has 16385 bytes"}},
	} {
		got, found, err := OfAnnotations(tt.in)
		if found != tt.found || (err != nil) != (len(tt.says) > 0) {
			t.Errorf("%s: %v, %v", tt.name, found, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		for _, s := range tt.says {
			if err != nil && !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v; want %q in it", tt.name, err, s)
			}
		}
	}
}

// Whatever annotations hold is read or refused, and what was read is read as the
// same when it is written again.
func FuzzAnnotationRules(f *testing.F) {
	f.Add("auto", "a type ipv4 addr 0.0.0.0 port dynamic\nu type unix path /u", "0.0.0.0:80=198.51.100.1:8080; 0.0.0.0:81=a", "0.0.0.0/0=a,::/0=::")
	f.Fuzz(func(t *testing.T, mode, endpoints, ingress, egress string) {
		read, _, err := OfAnnotations(map[string]string{
			"tsugiki.dev/mode": mode, "tsugiki.dev/endpoints": endpoints, "tsugiki.dev/ingress": ingress, "tsugiki.dev/egress": egress,
		})
		if err != nil {
			return
		}
		rules, err := Parse(read)
		if err != nil {
			if rules.Mode != filter.Seccomp || len(rules.Endpoints.All()) > 0 {
				t.Errorf("%+v: rules beside the error %v", read, err)
			}
			return
		}
		again, err := Parse(rules.Texts())
		if err != nil {
			t.Fatalf("%+v: what it became cannot be read: %v", read, err)
		}
		if diff := cmp.Diff(rules.Texts(), again.Texts()); diff != "" {
			t.Errorf("%+v: read again (-first +then):\n%s", read, diff)
		}
	})
}

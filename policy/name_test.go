package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/policy"
)

func TestNameRuleForms(t *testing.T) {
	for in, want := range map[string]string{
		"db.example.org":                  "db.example.org",
		"DB.Example.ORG.":                 "db.example.org",
		"db.example.org:5432":             "db.example.org:5432",
		"db.example.org.:5432-5440/tcp":   "db.example.org:5432-5440/tcp",
		"db.example.org/udp":              "db.example.org/udp",
		"db.example.org:0-65535":          "db.example.org",
		"*":                               "*",
		"*:443":                           "*:443",
		"*.example.com":                   "*.example.com",
		"**.example.com":                  "**.example.com",
		"**.*.com":                        "**.*.com",
		"api-*-v*.example.com":            "api-*-v*.example.com",
		"_sip._udp.example.com":           "_sip._udp.example.com",
		"xn--bcher-kva.example":           "xn--bcher-kva.example",
		"localhost":                       "localhost",
		"4.example":                       "4.example",
		strings.Repeat("a", 63) + ".org":  strings.Repeat("a", 63) + ".org",
		strings.Repeat("a.", 125) + "org": strings.Repeat("a.", 125) + "org",
	} {
		r, err := policy.ParseNameRule(in)
		if err != nil || r.String() != want {
			t.Errorf("%q: %q, %v; want %q", in, r, err, want)
		}
	}
}

func TestNameRuleSaysWhatIsWrong(t *testing.T) {
	for in, says := range map[string]string{
		"":                                  "the name is missing",
		".":                                 "the name is missing",
		":443":                              "the name is missing",
		"a.example:":                        "port after",
		"a.example:x":                       "neither a port",
		"a.example:2-1":                     "neither a port",
		"a.example:65536":                   "neither a port",
		"a.example:80:81":                   "write an address in -e",
		"192.0.2.1":                         "write an address in -e",
		"192.0.2.1/tcp":                     "write an address in -e",
		"192.0.2.1:80":                      "write addresses in -e",
		"192.0.2":                           "write addresses in -e",
		"2001:db8::1":                       "write an address in -e",
		"[2001:db8::1]:443":                 "write an address in -e",
		"2001:db8::/32":                     "write an address in -e",
		"10.0.0.0/8":                        `'/' cannot be in it`,
		"a.example/sctp":                    `'/' cannot be in it`,
		"a.example=::":                      "write an address in -e",
		"a.example=out":                     `'=' cannot be in it`,
		"a b.example":                       `' ' cannot be in it`,
		"a.example\n":                       `'\n' cannot be in it`,
		`a\.b.example`:                      `'\\' cannot be in it`,
		"bücher.example":                    "xn--",
		"\u212a.example":                    "xn--", // the sign for Kelvin, a "k" in lower case
		"a..example":                        "between two dots",
		".a.example":                        "before the first",
		"a.example..":                       "between two dots",
		"**":                                `"**" is only possible`,
		"a.**.example":                      `"**" is only possible`,
		"a**.example":                       `"**" is only possible`,
		"***.example":                       `"**" is only possible`,
		strings.Repeat("a", 64) + ".org":    "a label has 64 octets",
		strings.Repeat("a.", 126) + "ab":    "it has 254 octets",
		strings.Repeat("a\n", 10000) + "ab": "it has 20002 octets",
	} {
		_, err := policy.ParseNameRule(in)
		if !errors.Is(err, policy.ErrRule) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 {
			t.Errorf("%q: %v; want ErrRule in a line that says %q", in, err, says)
		}
	}
}

func TestNameRuleMatches(t *testing.T) {
	for _, tt := range []struct{ pattern, matching, others string }{
		{"db.example.org", "db.example.org db.example.org. DB.EXAMPLE.org.", "example.org a.db.example.org xdb.example.org db.example.org.evil db.example.orgx ."},
		{"*.example.com", "a.example.com A.EXAMPLE.COM. _x.example.com xn--a.example.com", "example.com a.b.example.com .example.com a.example.com.evil.net aexample.com"},
		{"**.example.com", "a.example.com a.b.example.com a.b.c.example.com.", "example.com xexample.com .example.com a..example.com"},
		{"**.*.com", "a.example.com a.b.example.com", "example.com a.example.org"},
		{"*", "com a.example.com a.b.c.example.com.", ". a..b"},
		{"*example.com", "example.com evilexample.com", "a.example.com"},
		{"api-*-v*.example.com", "api--v.example.com api-x-v2.example.com api-v-v-v.example.com", "api-v.example.com api-x.example.com api-a.b-v1.example.com"},
		{"*a*b*a*.example", "aba.example xaxbxax.example aabbaa.example", "ab.example bab.example abb.example"},
		{"a*a.example", "aa.example aba.example", "a.example"},
		{"*.*.example", "a.b.example", "a.example a.b.c.example"},
	} {
		r, err := policy.ParseNameRule(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(tt.matching) {
			if !r.Matches(name) {
				t.Errorf("%s does not match %s", tt.pattern, name)
			}
		}
		for _, name := range append(strings.Fields(tt.others), "", " ") {
			if r.Matches(name) {
				t.Errorf("%s matches %q", tt.pattern, name)
			}
		}
	}
	// What a DNS message may have in a label, as its text has it.
	for _, pattern := range []string{"*", "*.example.com", "**.example.com"} {
		r, err := policy.ParseNameRule(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			`a\.example.com.`, `evil\.example.com.`, `a\.b.example.com.`, `\000.example.com.`, "*.example.com.", "a b.example.com.", `a\ b.example.com.`, "\u212a.example.com.", `\255.example.com.`,
			strings.Repeat("a.", 125) + "example.com",
		} {
			if r.Matches(name) {
				t.Errorf("%s matches %q", pattern, name)
			}
		}
	}
}

// A rule that is read is written as it is read, and a name that it matches has no other octets than
// those of names. Nothing wrong takes more than a line to say.
func FuzzNameRule(f *testing.F) {
	for _, s := range []string{"*.example.com:80-90/udp", "**.a*b.org", "*", "192.0.2.1", "[::]:1", "\u212a.example", "a..b"} {
		f.Add(s, "a.example.com.")
		f.Add(s, `a\.example.com.`)
	}
	f.Fuzz(func(t *testing.T, s, name string) {
		r, err := policy.ParseNameRule(s)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !errors.Is(err, policy.ErrRule) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		again, err := policy.ParseNameRule(r.String())
		if err != nil || again != r {
			t.Errorf("%q is %+v, and %q is %+v, %v", s, r, r, again, err)
		}
		if !strings.Contains(r.Pattern, "*") && !r.Matches(r.Pattern) {
			t.Errorf("%q does not match itself", r.Pattern)
		}
		if !r.Matches(name) {
			return
		}
		labels := strings.Split(strings.TrimSuffix(name, "."), ".")
		plain := strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
		if !plain || strings.Contains(name, "..") || len(name) > 254 {
			t.Errorf("%q matches %q", r.Pattern, name)
		}
		pattern := strings.Split(r.Pattern, ".")
		if n := len(pattern); pattern[0] != "**" && r.Pattern != "*" && n != len(labels) || pattern[0] == "**" && n > len(labels) {
			t.Errorf("%q matches %q, which has %d labels", r.Pattern, name, len(labels))
		}
		if last := pattern[len(pattern)-1]; !strings.Contains(last, "*") && !strings.EqualFold(last, labels[len(labels)-1]) {
			t.Errorf("%q matches %q", r.Pattern, name)
		}
	})
}

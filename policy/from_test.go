package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

func TestParseSources(t *testing.T) {
	const uid = "0b0f5d3e-8c1c-4b1a-9d3f-5f0a6b7c8d9e"
	for text, want := range map[string]policy.From{
		"0.0.0.0:80=web": nil,
		"0.0.0.0:80/tcp+own+from:10.0.0.0/8+except:10.1.0.0/16=web": {
			{Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Prefix: netip.MustParsePrefix("10.1.0.0/16"), Except: true},
		},
		"0.0.0.0:80+from:192.0.2.1+from:2001:db8::/32+from:pod:" + uid + "=web": {
			{Prefix: netip.MustParsePrefix("192.0.2.1/32")}, {Prefix: netip.MustParsePrefix("2001:db8::/32")}, {Pod: uid},
		},
		"[::]:443+from:::/0=six": {{Prefix: netip.MustParsePrefix("::/0")}},
	} {
		r, err := policy.ParseIngress(text, policytest.Endpoints(t))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, r.From, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
		if r.Own != strings.Contains(text, "+own") {
			t.Errorf("%s: own is %v", text, r.Own)
		}
		again, err := policy.ParseIngress(r.String(), policytest.Endpoints(t))
		if err != nil || again.String() != r.String() {
			t.Errorf("%s is written as %s, and read as %s, %v", text, r, again, err)
		}
		f, err := policy.ParseFrom(r.From.String())
		if err != nil || f.String() != r.From.String() {
			t.Errorf("%s: the sources %s are read as %s, %v", text, r.From, f, err)
		}
	}
	many := strings.Builder{}
	for range 2049 {
		many.WriteString("+from:10.0.0.0/8")
	}
	for text, want := range map[string]string{
		"0.0.0.0:80+from=web":                                     `unknown word "+from"; there are +own, +from:PREFIX`,
		"0.0.0.0:80+own+own=web":                                  `unknown word "+own"`,
		"0.0.0.0:80+=web":                                         `unknown word "+"`,
		"0.0.0.0:80+from:except:10.0.0.0/8=web":                   `unknown word`,
		"0.0.0.0:80+from:=web":                                    `"" is neither an IP prefix nor an address`,
		"0.0.0.0:80+from:db=web":                                  `"db" is neither an IP prefix nor an address`,
		"0.0.0.0:80+from:0.0.0.0=web":                             "0.0.0.0 without a length is one address",
		"0.0.0.0:80+from:10.0.0.1/8=web":                          "10.0.0.0/8 is meant",
		"0.0.0.0:80+from:::ffff:10.0.0.0/104=web":                 "is no IP prefix",
		"0.0.0.0:80+from:fe80::1%eth0=web":                        "is no IP prefix",
		"0.0.0.0:80+except:10.0.0.0/8=web":                        "there is nothing to exclude",
		"0.0.0.0:80+from:10.0.0.0/8+except:11.0.0.0/8=web":        "there is nothing to exclude",
		"0.0.0.0:80+from:10.0.0.0/8+except:10.0.0.0/8=web":        "there is a source of the same prefix",
		"0.0.0.0:80+from:pod:a+from:pod:a=web":                    "there is a source of the same pod",
		"0.0.0.0:80+from:pod:=web":                                `"" is no UID of a pod`,
		"0.0.0.0:80+from:pod:../x=web":                            `"../x" is no UID of a pod`,
		"0.0.0.0:80+from:pod:" + strings.Repeat("a", 65) + "=web": "is no UID of a pod",
		"0.0.0.0:80+from:10.0.0.0/8+except:pod:a=web":             "+except: has a prefix",
		"0.0.0.0:80+from:10.0.0.0/8=un":                           `+from: needs an endpoint with an address, and "un" is a unix one`,
		"0.0.0.0:80" + many.String() + "=web":                     "2049 sources, at most 2048 may be",
		"0.0.0.0:80+from:10.0.0.0/8/tcp=web":                      "is neither an IP prefix nor an address",
	} {
		if r, err := policy.ParseIngress(text, policytest.Endpoints(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, %v; want %q", text, r, err, want)
		}
	}
}

func TestSourcesNeedAnUnnamedEndpoint(t *testing.T) {
	eps := policytest.Endpoints(t)
	web, err := eps.Get("web")
	if err != nil {
		t.Fatal(err)
	}
	web.Nameable = true
	if _, err := policy.ParseIngress("0.0.0.0:80+from:10.0.0.0/8=web", eps); err == nil || !strings.Contains(err.Error(), `"web" is nameable`) {
		t.Errorf("a nameable endpoint: %v", err)
	}
	if _, err := policy.ParseFrom("from:10.0.0.0/8"); err == nil {
		t.Error("sources without a + are read")
	}
}

func TestAdmits(t *testing.T) {
	r, err := policy.ParseIngress("0.0.0.0:80+from:10.0.0.0/8+except:10.1.0.0/16+from:10.1.2.0/24+from:2001:db8::/32+from:pod:a=any", policytest.Endpoints(t))
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"10.2.0.1": true, "10.1.0.1": false, "10.1.2.3": true, "11.0.0.1": false, "::ffff:10.2.0.1": true, "2001:db8::1": true, "2001:db9::1": false,
	} {
		if got := r.From.Admits(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if !(policy.From{}).Admits(netip.MustParseAddr("192.0.2.1")) {
		t.Error("without sources, somebody is not let in")
	}
	if (policy.From{{Pod: "a"}}).Admits(netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address is let in, and only a pod is a source")
	}
}

package rules

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/policy"
)

func loaded(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestOfConfig(t *testing.T) {
	cfg := loaded(t, "[[container]]\nmatch = \"web-*\"\nmode = \"seccomp\"\nendpoints = [\"u type unix path /u\"]\ningress = [\"0.0.0.0:80=u\"]\n"+
		"egress = [\"0.0.0.0/0=0.0.0.0\"]\n[[container]]\nmatch = \"db\"\n")
	if err := CheckConfig(cfg); err != nil {
		t.Error(err)
	}
	want := api.Rules{Mode: "seccomp", Endpoints: []string{"u type unix path /u"}, Ingress: []string{"0.0.0.0:80=u"}, Egress: []string{"0.0.0.0/0=0.0.0.0"}}
	got, found := OfConfig(cfg, "web-1")
	if diff := cmp.Diff(want, got); diff != "" || !found {
		t.Errorf("web-1: %v (-want +got):\n%s", found, diff)
	}
	if got, found := OfConfig(cfg, "db"); !found || cmp.Diff(api.Rules{}, got) != "" {
		t.Errorf("db: %v %+v", found, got)
	}
	cfg = loaded(t, "[[container]]\nmatch = \"*\"\ntranslate = true\nipv6 = \"2001:db8::9\"\ndns = [\":53\"]\npool = \"10.18.0.0/15\"\nftp = \"21,2121\"\nsip = \"5060\"\n")
	want = api.Rules{Translate: &api.Translate{IPv6: "2001:db8::9", DNS: []string{":53"}, Pool: "10.18.0.0/15", FTP: "21,2121", SIP: "5060"}}
	if got, _ := OfConfig(cfg, "web-1"); cmp.Diff(want, got) != "" {
		t.Errorf("a translation (-want +got):\n%s", cmp.Diff(want, got))
	}
	cfg = loaded(t, "[[container]]\nmatch = \"db\"\n")
	if _, found := OfConfig(cfg, "cache"); found {
		t.Error("there is an entry for cache")
	}
}

// Each rule that is wrong is said with its own line.
func TestCheckConfig(t *testing.T) {
	cfg := loaded(t, `[[container]]
match = "a"
egress = [
	"0.0.0.0/0=0.0.0.0",
	"::/0=nope",
]
ingress = ["0.0.0.0:80"]
[[container]]
match = "b"
endpoints = ["x type ipx"]
ingress = ["0.0.0.0:80=nobody says that x is missing"]
[[container]]
match = "c"
ingress = ["0.0.0.0:80=0.0.0.0",
	"0.0.0.0:80=0.0.0.0:81"]
[[container]]
match = "d"
translate = true
ingress = ["0.0.0.0:80=[2001:db8::9]:80"]
dns = [":53",
	"example.com"]
name_rules = ["*.example.com",
	"a..b"]
[[container]]
match = "e"
ipv6 = "2001:db8::9"
`)
	err := CheckConfig(cfg)
	if err == nil {
		t.Fatal("no error")
	}
	want := []string{
		`:7: bad rule -i "0.0.0.0:80"`, `:5: bad rule -e "::/0=nope"`, `:10: bad endpoint "x type ipx"`,
		":12: bad rule -i: the ports 80 and 80 of 0.0.0.0 overlap",
		`:21: bad dns "example.com"`, `:23: bad rule --name-rule "a..b"`, ":24: container.ipv6, container.dns, container.pool, container.ftp and container.sip need translate = true",
	}
	got := strings.Split(err.Error(), "\n")
	if len(got) != len(want) {
		t.Fatalf("%q, want %q", got, want)
	}
	for i := range got {
		if !strings.HasPrefix(got[i], cfg.Path+want[i]) {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
	if !errors.Is(err, policy.ErrRule) {
		t.Errorf("%v is no ErrRule", err)
	}
}

// What the configuration takes for granted is so here too.
func TestConfigAgrees(t *testing.T) {
	if config.DefaultRunDir != api.RunDir {
		t.Errorf("containers are in %s, and in %s by default of the configuration", api.RunDir, config.DefaultRunDir)
	}
	for _, mode := range filter.ModeNames() {
		if err := CheckConfig(loaded(t, "[[container]]\nmatch = \"*\"\nmode = \""+mode+"\"\n")); err != nil {
			t.Error(err)
		}
	}
	data, err := os.ReadFile("../../packaging/agent.toml")
	if err != nil {
		t.Fatal(err)
	}
	var example strings.Builder
	for l := range strings.Lines(string(data)) {
		if !strings.HasPrefix(l, "# ") {
			example.WriteString(strings.TrimPrefix(l, "#"))
		}
	}
	cfg := loaded(t, example.String())
	if err := CheckConfig(cfg); err != nil || len(cfg.Containers) == 0 {
		t.Errorf("the example that is packaged has %d containers: %v", len(cfg.Containers), err)
	}
}

// What the pages show of [[allow]] can be written so, also without its comments' marks.
func TestDocumentedAllow(t *testing.T) {
	block := regexp.MustCompile("(?s)```toml\n(.*?)```")
	found := 0
	for _, page := range []string{"README.md", "README.ja.md", "docs/RUNTIME.md", "docs/CONFIG.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range block.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(b[1], "[[allow]]") {
				continue
			}
			found++
			whole := regexp.MustCompile(`(?m)^# ([a-z]+ = )`).ReplaceAllString(b[1], "$1")
			cfg := loaded(t, whole)
			// The rules of an example may name endpoints that it leaves out.
			cfg.Containers = nil
			if err := CheckConfig(cfg); err != nil || len(cfg.Allows) == 0 {
				t.Errorf("%s: %v:\n%s", page, err, whole)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d examples were found", found)
	}
}

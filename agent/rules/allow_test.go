package rules

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/policy"
)

// entry is an [[allow]] for docker's containers, with more lines.
func entry(lines ...string) string {
	return "[[allow]]\nengines = [\"docker\"]\nnames = [\"web*\"]\n" + strings.Join(lines, "\n") + "\n"
}

const (
	hearAll  = `annotations = ["egress", "ingress", "endpoints", "mode", "name", "name-rules", "translate", "ipv6", "dns", "ftp", "sip"]`
	anywhere = `destinations = ["0.0.0.0/0", "::/0"]`
	anyHost  = `addresses = ["0.0.0.0/0", "::/0"]`
)

// Each row is refused by the configuration that it has, for what it says; and heard
// where the line is added that says so.
func TestHear(t *testing.T) {
	for _, tt := range []struct {
		name        string
		annotations string // KEY=VALUE, by " | "
		lines       []string
		says        string // part of the refusal
		add         string // a line with which it is heard; it replaces one of the same key
	}{
		{"the annotation", "egress=203.0.113.0/24=198.51.100.1", []string{anywhere, anyHost}, "tsugiki.dev/egress is not one that is heard", `annotations = ["egress"]`},
		{"another annotation", "mode=seccomp", []string{`annotations = ["egress"]`}, `tsugiki.dev/mode is not one that is heard`, `annotations = ["egress", "mode"]`},
		{"a name", "name=web-2", []string{`annotations = ["egress"]`}, "tsugiki.dev/name is not one", `annotations = ["name"]`},
		{"another's name", "name=db", []string{hearAll}, "tsugiki.dev/name asks for names db", `names = ["web*", "db"]`},
		{"a destination", "egress=0.0.0.0/0=198.51.100.1", []string{hearAll, anyHost, `destinations = ["10.0.0.0/8"]`}, "asks for destinations 0.0.0.0/0", anywhere},
		{"a wider destination", "egress=10.0.0.0/7=198.51.100.1", []string{hearAll, anyHost, `destinations = ["10.0.0.0/8"]`}, "destinations 10.0.0.0/7", `destinations = ["10.0.0.0/7"]`},
		{"one of IPv6", "egress=2001:db8::/32=::", []string{hearAll, anyHost, `destinations = ["0.0.0.0/0"]`}, "destinations 2001:db8::/32", `destinations = ["2001:db8::/32"]`},
		{"what is no rule", "egress=10.0.0.1=::ffff", []string{hearAll}, "bad rule", ""},
		{"the last of several rules", "egress=10.0.0.1=198.51.100.1, 10.1.0.0/16=198.51.100.1", []string{hearAll, anyHost, `destinations = ["10.0.0.0/16"]`}, "destinations 10.1.0.0/16", `destinations = ["10.0.0.0/15"]`},
		{"loopback", "egress=127.0.0.1:2375=198.51.100.1", []string{hearAll, anywhere, anyHost}, "asks for special loopback", `special = ["loopback"]`},
		{"part of the loopback", "egress=127.0.0.0/9=198.51.100.1", []string{hearAll, anywhere, anyHost}, "special loopback", `special = ["loopback"]`},
		{"loopback of IPv6", "egress=[::1]:80=::", []string{hearAll, anywhere, anyHost}, "special loopback", `special = ["loopback"]`},
		{"link-local", "egress=169.254.169.254=198.51.100.1", []string{hearAll, anywhere, anyHost}, "special link-local", `special = ["link-local"]`},
		{"link-local of IPv6", "egress=fe80::/10=::", []string{hearAll, anywhere, anyHost}, "special link-local", `special = ["link-local"]`},
		{"multicast", "egress=224.0.0.251=198.51.100.1", []string{hearAll, anywhere, anyHost}, "special multicast", `special = ["multicast"]`},
		{"broadcast", "egress=255.255.255.255=198.51.100.1", []string{hearAll, anywhere, anyHost}, "special broadcast", `special = ["broadcast"]`},
		{"unspecified", "egress=0.0.0.0/8=198.51.100.1", []string{hearAll, anywhere, anyHost}, "special unspecified", `special = ["unspecified"]`},
		{"an address", "egress=10.0.0.1=198.51.100.1", []string{hearAll, anywhere, `addresses = ["198.51.100.2", "0.0.0.0/32"]`}, "addresses 198.51.100.1", `addresses = ["198.51.100.0/24"]`},
		{"the host's choice", "egress=10.0.0.1=0.0.0.0", []string{hearAll, anywhere, `addresses = ["198.51.100.0/24"]`}, "addresses 0.0.0.0/32", `addresses = ["0.0.0.0/32"]`},
		{"a server on the loopback", "ingress=0.0.0.0:8080=127.0.0.1", []string{hearAll, anyHost}, "special loopback", `special = ["loopback"]`},
		{"a port", "ingress=0.0.0.0:8080=198.51.100.1:80", []string{hearAll, anyHost}, "ports 80", `ports = ["80"]`},
		{"a port that is the program's", "ingress=0.0.0.0:80=198.51.100.1", []string{hearAll, anyHost}, "ports 80", `ports = ["80-90"]`},
		{"a range of ports", "ingress=0.0.0.0:1000-1100=198.51.100.1", []string{hearAll, anyHost, `ports = ["1000-1049", "1051-1100"]`}, "ports 1000-1100", `ports = ["1000-1049", "1050", "1040-2000"]`},
		{"a port of an endpoint", "ingress=0.0.0.0:80=w | endpoints=w type ipv4 addr 198.51.100.1 port 443", []string{hearAll, anyHost}, "ports 443", `ports = ["443"]`},
		{"a port of a range of an endpoint", "ingress=0.0.0.0:90=w | endpoints=w type ipv4 addr 198.51.100.1 port 80-2000", []string{hearAll, anyHost}, "ports 80-2000", `ports = ["80-2000"]`},
		{"a port of a dynamic endpoint", "ingress=[::]:53=w | endpoints=w type ipv6 addr :: port dynamic", []string{hearAll, anyHost}, "ports 53", `ports = ["53"]`},
		{"any port", "ingress=0.0.0.0:0=198.51.100.1", []string{hearAll, anyHost, `ports = ["8080"]`}, "ports 1024-65535", `ports = ["1024-65535"]`},
		{"a source port", "egress=10.0.0.1=w | endpoints=w type ipv4 addr 198.51.100.1 port 53", []string{hearAll, anyHost, anywhere}, "ports 53", `ports = ["53"]`},
		{"IPv6", "egress=2001:db8::1=::", []string{hearAll, anyHost, anywhere, `types = ["ipv4"]`}, "types ipv6", `types = ["ipv6"]`},
		{"a unix endpoint", "egress=10.0.0.1=d | endpoints=d type unix path /run/docker.sock", []string{hearAll, anyHost, anywhere, `paths = ["/run/*"]`}, "types unix", `types = ["unix"]`},
		{"a path", "egress=10.0.0.1=d | endpoints=d type unix path /run/docker.sock", []string{hearAll, `types = ["unix"]`, `paths = ["/run/app/*", "/run/app/"]`}, "paths /run/docker.sock", `paths = ["/run/docker.sock"]`},
		{"a path below a folder", "ingress=0.0.0.0:80=d | endpoints=d type unix path /srv/a/b", []string{hearAll, `types = ["unix"]`, `paths = ["/srv/*"]`}, "paths /srv/a/b", `paths = ["/srv/"]`},
		{"a path out of a folder", "egress=10.0.0.1=d | endpoints=d type unix path /srv/../run/docker.sock", []string{hearAll, `types = ["unix"]`, `paths = ["/srv/"]`}, "without .., . and // in it", ""},
		{"a namespace", "egress=10.0.0.1=n | endpoints=n type ipv4 addr 0.0.0.0 port dynamic netns blue", []string{hearAll, anyHost, anywhere}, "netns blue", `netns = ["b*"]`},
		{"a path of a namespace", "egress=10.0.0.1=n | endpoints=n type ipv4 addr 0.0.0.0 port dynamic netns /proc/1/ns/net", []string{hearAll, anyHost, anywhere, `netns = ["*", "/run/netns/*"]`}, "netns /proc/1/ns/net", `netns = ["/proc/*/ns/net"]`},
		{"a path out of a folder of namespaces", "egress=10.0.0.1=n | endpoints=n type ipv4 addr 0.0.0.0 port dynamic netns /run/netns/../../proc/1/ns/net", []string{hearAll, anyHost, anywhere, `netns = ["/run/netns/*"]`}, "without .., . and // in it", ""},
		{"a process's namespace", "egress=10.0.0.1=n | endpoints=n type ipv4 addr 0.0.0.0 port dynamic netns 1", []string{hearAll, anyHost, anywhere, `netns = ["*"]`}, "by a process id", ""},
		{"a name for programs", "endpoints=n type ipv4 addr 0.0.0.0 port dynamic nameable", []string{hearAll, anyHost, anywhere}, "nameable true", "nameable = true"},
		{"where names lead", "endpoints=n type ipv6 addr :: port 8080 nameable", []string{hearAll, anyHost, "nameable = true", `destinations = ["0.0.0.0/0"]`}, "destinations ::/0", anywhere},
		{"a spare endpoint", "endpoints=n type ipv4 addr 198.51.100.1 port 80", []string{hearAll}, "addresses 198.51.100.1", "addresses = [\"198.51.100.1\"]\nports = [\"80\"]"},
		{"a translation", "translate=true", []string{`annotations = ["egress"]`, anywhere, anyHost}, "tsugiki.dev/translate is not one that is heard", hearAll},
		{"where a translation leads", "translate=true", []string{hearAll, anyHost, `destinations = ["0.0.0.0/0", "2001:db8::/32"]`}, "tsugiki.dev/translate asks for destinations ::/0", anywhere},
		{"from where", "translate=true", []string{hearAll, anywhere, `addresses = ["2001:db8::/32"]`}, "tsugiki.dev/translate asks for addresses ::/128", `addresses = ["::/128"]`},
		{"from an address", "translate=true | ipv6=2001:db8::9", []string{hearAll, anywhere, `addresses = ["::/128"]`}, "tsugiki.dev/ipv6 asks for addresses 2001:db8::9", `addresses = ["2001:db8::9"]`},
		{"from the loopback", "translate=true | ipv6=::1", []string{hearAll, anywhere, anyHost}, "tsugiki.dev/ipv6 asks for special loopback", `special = ["loopback"]`},
		{"a translated server", "translate=true | ingress=0.0.0.0:80=[2001:db8::9]:80", []string{hearAll, anywhere, anyHost}, "tsugiki.dev/ingress asks for ports 80", `ports = ["80"]`},
		{"a resolver", "translate=true | dns=[2001:db8::53]:53", []string{hearAll, anywhere, anyHost}, "tsugiki.dev/dns asks for resolvers [2001:db8::53]:53", `resolvers = ["[2001:db8::53]:53"]`},
		{"another port of a resolver", "translate=true | dns=[2001:db8::53]:54", []string{hearAll, anywhere, anyHost, `resolvers = ["[2001:db8::53]:53"]`}, "asks for resolvers [2001:db8::53]:54", `resolvers = ["[2001:DB8:0::53]:54"]`},
		{"a resolver of the host's loopback", "translate=true | dns=192.0.2.1:53, :53", []string{hearAll, anywhere, anyHost, `resolvers = ["192.0.2.1:53"]`}, "asks for resolvers [::1]:53", `resolvers = [":53", "192.0.2.1:53"]`},
		{"what is no resolver", "translate=true | dns=example.com:53", []string{hearAll, anywhere, anyHost}, `bad dns "example.com:53"`, ""},
		{"what is no address of IPv6", "translate=true | ipv6=192.0.2.1", []string{hearAll, anywhere, anyHost}, `bad ipv6 "192.0.2.1"`, ""},
		{"an address beside a rule", "translate=true | ipv6=2001:db8::9 | egress=2001:db8::/32=::", []string{hearAll, anywhere, anyHost}, "leave ipv6 out", ""},
		{"where names lead", "translate=true | name-rules=*.example.com:443", []string{hearAll, anyHost, `destinations = ["2001:db8::/32"]`}, "tsugiki.dev/name-rules asks for destinations ::/0", anywhere},
		{"from where names lead", "translate=true | name-rules=* | ipv6=2001:db8::9", []string{hearAll, anywhere, `addresses = ["::/128"]`}, "tsugiki.dev/name-rules asks for addresses 2001:db8::9", `addresses = ["2001:db8::9"]`},
		{"ports of SIP", "translate=true | sip=5060", []string{`annotations = ["translate"]`, anywhere, anyHost}, "tsugiki.dev/sip is not one that is heard", hearAll},
		{"ports of FTP", "translate=true | ftp=21,2121", []string{`annotations = ["translate", "sip"]`, anywhere, anyHost}, "tsugiki.dev/ftp is not one that is heard", hearAll},
		{"ports of SIP of an unknown origin", "translate=true | ?sip=5060", []string{hearAll, anywhere, anyHost}, "may be the image's", "unknown_origin = true"},
		{"what is no port of SIP", "translate=true | sip=0", []string{hearAll, anywhere, anyHost}, `bad ports "0"`, ""},
		{"too many ports of FTP", "translate=true | ftp=1,2,3,4,5", []string{hearAll, anywhere, anyHost}, "there are 5 ports, at most 4 may be", ""},
		{"ports of no translation", "sip=5060", []string{hearAll, anywhere, anyHost}, "need tsugiki.dev/translate: true", ""},
		{"names of no translation", "name-rules=*", []string{hearAll, anywhere, anyHost}, "name rules are for containers whose IPv4 is translated", ""},
		{"an unknown origin", "?egress=10.0.0.1=0.0.0.0", []string{hearAll, anyHost, anywhere}, "may be the image's", "unknown_origin = true"},
		{"an unknown name", "?name=web-2", []string{hearAll}, "may be the image's", "unknown_origin = true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := registration(tt.annotations)
			_, err := hear(loaded(t, entry(tt.lines...)), r)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v; want one line that says %q", err, tt.says)
			}
			if tt.add == "" {
				return
			}
			h, err := hear(loaded(t, replaceKeys(entry(tt.lines...), tt.add)), r)
			if err != nil {
				t.Fatalf("with %s: %v", tt.add, err)
			}
			if want := r.Annotations["tsugiki.dev/name"]; want != "" && h.name != want || want == "" && h.name != "web" {
				t.Errorf("its name is %q", h.name)
			}
		})
	}
}

// registration has annotations of a container web of docker's; a "?" is before those of
// which it is not known who gave them.
func registration(annotations string) *api.Registration {
	r := &api.Registration{ID: "id", Name: "web", Engine: "docker", Annotations: map[string]string{}}
	for _, a := range strings.Split(annotations, " | ") {
		key, value, _ := strings.Cut(a, "=")
		known, unknown := strings.CutPrefix(key, "?")
		if unknown {
			r.Unknown = append(r.Unknown, api.AnnotationPrefix+known)
		}
		r.Annotations[api.AnnotationPrefix+known] = value
	}
	return r
}

// replaceKeys puts lines in the place of those of the same key.
func replaceKeys(text, add string) string {
	key := func(line string) string { k, _, _ := strings.Cut(line, " = "); return k }
	for line := range strings.SplitSeq(add, "\n") {
		var kept []string
		for l := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
			if key(l) != key(line) {
				kept = append(kept, l)
			}
		}
		text = strings.Join(append(kept, line), "\n")
	}
	return text
}

// Without an entry nothing is heard, of which engine and name it may be; and what is said
// has the lines that would be the least.
func TestHearNothing(t *testing.T) {
	r := registration("egress=203.0.113.0/24=198.51.100.1, 127.0.0.1=0.0.0.0 | ingress=0.0.0.0:80=198.51.100.1:8080")
	const lines = `[[allow]]; engines = ["docker"]; names = ["web"]; annotations = ["egress", "ingress"]; destinations = ["203.0.113.0/24"]; ` +
		`special = ["loopback"]; addresses = ["198.51.100.1", "0.0.0.0/32"]`
	for name, text := range map[string]string{
		"nothing": "", "another engine": strings.Replace(entry(hearAll), "docker", "podman", 1), "another name": strings.Replace(entry(hearAll), "web*", "db*", 1),
	} {
		cfg := loaded(t, text)
		_, err := hear(cfg, r)
		want := "annotation tsugiki.dev/egress is not heard, as no [[allow]] in " + cfg.Path + " is for engine docker and name web; to have it heard, add these lines to that file and restart the agent: " + lines
		if !errors.Is(err, ErrNotAllowed) || err.Error() != "not allowed: "+want {
			t.Errorf("%s: %v\nwant %s", name, err, want)
		}
	}
	if _, err := hear(loaded(t, strings.ReplaceAll(lines, "; ", "\n")), r); err != nil {
		t.Errorf("with the lines: %v", err)
	}
	for name, r := range map[string]*api.Registration{
		"no annotation": {Name: "web", Engine: "docker"}, "another's": {Name: "web", Engine: "cri", Annotations: map[string]string{"example.com/egress": "x"}},
		"of the image": {Name: "web", Engine: "docker", Image: []string{"tsugiki.dev/egress"}},
	} {
		if h, err := hear(loaded(t, ""), r); err != nil || h.found || h.name != "web" {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	if _, err := hear(loaded(t, ""), &api.Registration{Name: "web", Engine: "lxc"}); !errors.Is(err, ErrRequest) {
		t.Errorf("an unknown engine: %v", err)
	}
}

// The first entry counts that is for a container, also if a later one allows more.
func TestHearTheFirst(t *testing.T) {
	text := entry(`annotations = []`) + entry(hearAll, anywhere, anyHost)
	if _, err := hear(loaded(t, text), registration("mode=auto")); err == nil || !strings.Contains(err.Error(), "on line 1 of") {
		t.Errorf("%v", err)
	}
}

func TestCheckAllow(t *testing.T) {
	cfg := loaded(t, entry(`destinations = ["0.0.0.0", "10.0.0.1/8", "127.0.0.0/8", "10.0.0.0/8"]`, `addresses = ["::", "127.0.0.1",`, `"0.0.0.0/32", "x"]`, `ports = ["0-65536", "80"]`))
	err := CheckConfig(cfg)
	if err == nil {
		t.Fatal("no error")
	}
	want := []string{
		`:4: allow.destinations: 0.0.0.0 without a length`, `:4: allow.destinations: "10.0.0.1/8" has bits`, `:4: allow.destinations: 127.0.0.0/8 is special; write special = ["loopback"]`,
		`:5: allow.addresses: :: has no length; write ::/128`, ":5: allow.addresses: 127.0.0.1 is special", `:6: allow.addresses: "x" is neither`, `:7: allow.ports: "0-65536" is neither`,
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
}

// The kinds of destinations are those that the rules' tables hold to be special, to the
// last address.
func TestKinds(t *testing.T) {
	rules, err := Parse(api.Rules{Egress: []string{"0.0.0.0/0=0.0.0.0", "::/0=::"}})
	if err != nil {
		t.Fatal(err)
	}
	table, err := policy.NewTable(rules.Ingress, rules.Egress)
	if err != nil {
		t.Fatal(err)
	}
	check := func(a netip.Addr) {
		if !a.IsValid() {
			return
		}
		kind := kindOf(netip.PrefixFrom(a, a.BitLen()))
		if covered := table.Egress(policy.TCP, netip.AddrPortFrom(a, 80)) != nil; covered == (kind != "") {
			t.Errorf("%s is of the kind %q, and a default route covers it: %v", a, kind, covered)
		}
	}
	for kind, prefixes := range kinds {
		for _, p := range prefixes {
			last := p.Addr().AsSlice()
			for bit := p.Bits(); bit < len(last)*8; bit++ {
				last[bit/8] |= 0x80 >> (bit % 8)
			}
			end, _ := netip.AddrFromSlice(last)
			for _, a := range []netip.Addr{p.Addr().Prev(), p.Addr(), end, end.Next()} {
				check(a)
			}
		}
		if !strings.Contains(strings.Join(config.SpecialKinds(), " "), kind) {
			t.Errorf("the configuration knows no %s", kind)
		}
	}
	for _, a := range []string{"8.8.8.8", "198.51.100.1", "2001:db8::1", "fc00::1", "ff02::1", "::2"} {
		check(netip.MustParseAddr(a))
	}
	if len(kinds) != len(config.SpecialKinds()) {
		t.Errorf("%d kinds, the configuration has %d", len(kinds), len(config.SpecialKinds()))
	}
}

// A path that leads elsewhere is not the one that is allowed.
func TestCheckPath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "real")
	if err := errors.Join(os.Mkdir(real, 0o700), os.WriteFile(filepath.Join(real, "socket"), nil, 0o600),
		os.Symlink(real, filepath.Join(dir, "folder")), os.Symlink(filepath.Join(real, "socket"), filepath.Join(real, "link"))); err != nil {
		t.Fatal(err)
	}
	for path, fine := range map[string]bool{
		"real/socket": true, "real/to-come": true, "folder/socket": false, "folder/to-come": false, "real/link": false, "nothing/socket": false, "real/socket/x": false,
	} {
		if err := checkPath(filepath.Join(dir, path)); (err == nil) != fine || err != nil && !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Whatever annotations ask for, nothing is heard without an entry; what is refused is
// said in one line; and with the lines that it says all is heard, and no less would do.
func FuzzHear(f *testing.F) {
	f.Add("seccomp", "web", "a type ipv4 addr 0.0.0.0 port dynamic netns blue\nu type unix path /u nameable", "0.0.0.0:80=198.51.100.1:8080; 0.0.0.0:81=a", "127.0.0.1=a,::/0=::", true)
	f.Add("", "", "a type ipv6 addr fe80::1 port 0-9 netns /run/netns/[", "[::]:0-9=a", "255.255.255.255=0.0.0.0", false)
	f.Fuzz(func(t *testing.T, mode, name, endpoints, ingress, egress string, unknown bool) {
		r := &api.Registration{Name: "web", Engine: "docker", Annotations: map[string]string{}}
		for key, value := range map[string]string{"mode": mode, "name": name, "endpoints": endpoints, "ingress": ingress, "egress": egress} {
			if value != "" {
				r.Annotations[api.AnnotationPrefix+key] = value
			}
			if unknown {
				r.Unknown = append(r.Unknown, api.AnnotationPrefix+key)
			}
		}
		checkHeard(t, r, name+endpoints)
	})
}

// The same of annotations that ask for translation.
func FuzzHearTranslation(f *testing.F) {
	f.Add("true", "", "", "", "", "", "")
	f.Add("true", "2001:db8::9", "[2001:db8::53]:53, :53;127.0.0.53:53", "", "0.0.0.0:80=[2001:db8::9]:8080", "none", "5060,5062")
	f.Add("true", "fe80::1", "[fe80::1%eth0]:53", "", "", "21,", "65536")
	f.Add("true", "", "0.0.0.0:1", "2001:db8::/32=::1, 10.0.0.0/8=0.0.0.0", "[::]:0-9=::", "1,2,3,4", "none")
	f.Add("false", "::", ",", "::/0=::", "", "", "5060")
	f.Fuzz(func(t *testing.T, translate, ipv6, dns, egress, ingress, ftp, sip string) {
		r := &api.Registration{Name: "web", Engine: "docker", Annotations: map[string]string{}}
		for key, value := range map[string]string{"translate": translate, "ipv6": ipv6, "dns": dns, "ingress": ingress, "egress": egress, "ftp": ftp, "sip": sip} {
			if value != "" {
				r.Annotations[api.AnnotationPrefix+key] = value
			}
		}
		checkHeard(t, r, "")
	})
}

// checkHeard checks what is heard of annotations, some of which are copied into the lines of the
// refusal.
func checkHeard(t *testing.T, r *api.Registration, copied string) {
	t.Helper()
	cfg := &config.Config{Path: "f"}
	_, err := hear(cfg, r)
	if err == nil && len(r.Annotations) > 0 {
		t.Fatalf("%v is heard without an entry", r.Annotations)
	}
	if err == nil || !errors.Is(err, ErrNotAllowed) {
		return
	}
	_, lines, proposed := strings.Cut(err.Error(), "restart the agent: ")
	if strings.ContainsAny(copied, ";\\\x7f\"") || strings.ContainsFunc(copied, func(r rune) bool { return r < ' ' && r != '\n' || r > '~' }) {
		return // the line is to be read, not to be copied
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %v", err)
	}
	if !proposed {
		return
	}
	text := strings.Split(lines, "; ")
	cfg = loaded(t, strings.Join(text, "\n"))
	if err := CheckConfig(cfg); err != nil {
		t.Fatalf("%s: %v", lines, err)
	}
	if _, err := hear(cfg, r); err != nil {
		t.Fatalf("with %s: %v", lines, err)
	}
	for i := 3; i < len(text); i++ { // after the header, the engines and the names
		less := append(append([]string{}, text[:i]...), text[i+1:]...)
		if _, err := hear(loaded(t, strings.Join(less, "\n")), r); err == nil {
			t.Errorf("%s: it is heard without %s", lines, text[i])
		}
	}
}

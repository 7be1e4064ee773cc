package discover

import (
	"strings"
	"testing"
)

const hex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParseStat(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 12 0 4711 9 9 9\n"
	for text, want := range map[string]stat{
		"12 (containerd-shim)" + rest:                 {"containerd-shim", 7, 4711, false},
		"12 (a) R 1 (b)" + rest:                       {"a) R 1 (b", 7, 4711, false},
		"12 (x)" + strings.Replace(rest, "S", "Z", 1): {"x", 7, 4711, true},
		"12 ()" + rest:                                {"", 7, 4711, false},
	} {
		if got, ok := parseStat([]byte(text)); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
	for _, bad := range []string{"", "12", "12 (x", ")(", "12 (x) S", "12 (x) S x 1", "12 (x)" + strings.Replace(rest, "4711", "-1", 1), "12 (x)" + strings.Replace(rest, "7", "-7", 1)} {
		if got, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestIDIn(t *testing.T) {
	other := strings.Repeat("f", hexSize)
	for _, c := range []struct{ path, shim, want string }{
		{"/docker/" + hex, hex, hex},
		{"/docker/" + hex + "/docker/" + other, other, hex}, // made in a container
		{"/system.slice/docker-" + hex + ".scope", "", hex},
		{"/kubepods.slice/kubepods-pod12_34.slice/cri-containerd-" + hex + ".scope", other, hex},
		{"/kubepods/burstable/pod1-2-3/" + hex, other, hex},
		{"/machine.slice/libpod-" + hex + ".scope/container", "", hex},
		{"/machine.slice/libpod-conmon-" + hex + ".scope", "", ""},
		{"/default/web", "web", "web"},
		{"/default/web/" + hex, "web", "web"},
		{"/default/web", "", ""},
		{"/system.slice/containerd.service", "web", ""},
		{"/a-web.scope", "web", "web"},
		{"/" + strings.ToUpper(hex), "", ""},
		{"/" + hex + "0", "", ""},
		{"/", "", ""},
		{"", "", ""},
		{"//-.scope", "", ""},
	} {
		if got := idIn(c.path, c.shim); got != c.want {
			t.Errorf("%q of %q: %q, want %q", c.path, c.shim, got, c.want)
		}
	}
}

func TestParseGroups(t *testing.T) {
	for text, want := range map[string]string{
		"4:memory:/m\n3:cpu,cpuacct:/c\n0::/u\n": "/c",
		"3:cpuacct:/a\n2:cpu:/c:with:colons\n":   "/c:with:colons",
		"0::/u\n":                                "/u",
		"2:cpuset:/x\n0::/u\n":                   "/u",
		"":                                       "",
		"nonsense\n::\n1:cpu:relative\n":         "",
	} {
		if got := parseGroups([]byte(text)).cpu; got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestArguments(t *testing.T) {
	args := []byte("/usr/bin/containerd-shim-runc-v2\x00-namespace\x00moby\x00-id\x00" + hex + "\x00-address\x00/run/x\x00")
	if got := argument(args, "-id"); got != hex {
		t.Errorf("id %q", got)
	}
	for _, bad := range []string{"", "a\x00-id", "-id\x00x", "a\x00-id\x00../x\x00", "a\x00-id\x00a/b\x00", "a\x00-id\x00" + strings.Repeat("x", idMax+1)} {
		if got := argument([]byte(bad), "-id"); got != "" {
			t.Errorf("%q: id %q", bad, got)
		}
	}
	if got := loggedID([]byte("A=1\x00CONTAINER_ID=web\x00")); got != "web" {
		t.Errorf("variable %q", got)
	}
	if got := loggedID([]byte("XCONTAINER_ID=web\x00CONTAINER_ID")); got != "" {
		t.Errorf("variable %q", got)
	}
}

// FuzzParse checks that no text of /proc makes a parser panic, and that no id is dangerous as a
// part of a path.
func FuzzParse(f *testing.F) {
	f.Add([]byte("12 (a) b) S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 12 0 4711 9 9 9\n"))
	f.Add([]byte("4:memory:/m\n3:cpu,cpuacct:/docker/" + hex + "\n0::/u\n"))
	f.Add([]byte("shim\x00-id\x00web\x00"))
	f.Add([]byte("CONTAINER_ID=web\x00"))
	f.Add([]byte("123\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, ok := parseStat(text); ok && s.ppid < 0 {
			t.Errorf("parent %d", s.ppid)
		}
		g := parseGroups(text)
		for _, path := range g.telling(1) {
			if path != "" && path[0] != '/' {
				t.Errorf("group %q", path)
			}
			if id := idIn(path, ""); id != "" && validID(id) != id {
				t.Errorf("id %q", id)
			}
		}
		for _, id := range []string{argument(text, "-id"), loggedID(text)} {
			if strings.ContainsAny(id, "/\x00") || strings.HasPrefix(id, ".") || len(id) > idMax {
				t.Errorf("id %q", id)
			}
		}
		if number(text) < 0 {
			t.Errorf("number %d", number(text))
		}
	})
}

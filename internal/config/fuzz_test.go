package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// mirror is the file as the library reads it.
type mirror struct {
	RunDir   *string `toml:"run_dir"`
	StateDir *string `toml:"state_dir"`
	Log      struct {
		Level, Format *string
	}
	Metrics struct{ Listen *string }
	Runtime struct{ Path *string }
	Allow   []struct {
		Engines, Names, Annotations, Destinations, Special, Addresses, Ports, Types, Netns, Paths []string

		UnknownOrigin bool `toml:"unknown_origin"`
		Nameable      bool
	}
	Container []struct {
		Match                      string
		Mode                       string
		Endpoints, Ingress, Egress []string
	}
}

// Whatever a file holds, it is read or refused. What is read, the library reads as
// the same, and each fault has a line that there is.
func FuzzParse(f *testing.F) {
	f.Add([]byte("run_dir = \"/r\"\n[log]\nlevel = \"debug\"\n[[container]]\nmatch = \"*\"\negress = [\n'''\na''', \"b\"]\n"))
	f.Add([]byte("container = [{match = \"a\", egress = ['x']}, {match = \"b\"}]\nmetrics.listen = \"[::]:1\"\n"))
	f.Add([]byte("[[allow]]\nengines = [\"docker\"]\nnames = [\"*\"]\nports = [\"1-2\"]\nnameable = true\nunknown_origin = false\npaths = [\"/a/\"]\n[[allow]]\nnames = []\nengines = []\n"))
	f.Add([]byte("runtime = { path = \"/a\" }\r\nlogs = 3\n[x.y]\n[[z]]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse("f", data)
		texts := strings.Split(string(data), "\n")
		lines := len(texts)
		if err != nil {
			errs := []error{err}
			if joined, is := err.(interface{ Unwrap() []error }); is {
				errs = joined.Unwrap()
			}
			for _, err := range errs {
				var e *Error
				if !errors.As(err, &e) || e.Line < 0 || e.Line > lines {
					t.Fatalf("%v is not of one of %d lines", err, lines)
				}
				if e.Column < 0 || (e.Column > 0 && (e.Line == 0 || e.Column > len(texts[e.Line-1])+1)) {
					t.Errorf("%v has a column that line %d does not have", err, e.Line)
				}
			}
			return
		}
		var m mirror
		if err := toml.NewDecoder(strings.NewReader(string(data))).DisallowUnknownFields().Decode(&m); err != nil {
			t.Fatalf("the library refuses it: %v", err)
		}
		same := func(what string, got string, want *string) {
			if want != nil && got != *want {
				t.Errorf("%s is %q, want %q", what, got, *want)
			}
		}
		same("run_dir", c.RunDir, m.RunDir)
		same("state_dir", c.StateDir, m.StateDir)
		same("format", c.Log.Format, m.Log.Format)
		same("listen", c.Metrics.Listen, m.Metrics.Listen)
		same("path", c.Runtime.Path, m.Runtime.Path)
		checkAllows(t, c, m)
		if len(c.Containers) != len(m.Container) {
			t.Fatalf("%d containers, want %d", len(c.Containers), len(m.Container))
		}
		for i, want := range m.Container {
			got := c.Containers[i]
			same("match", got.Match, &want.Match)
			same("mode", got.Mode, &want.Mode)
			for _, l := range []struct {
				got  []Text
				want []string
			}{{got.Endpoints, want.Endpoints}, {got.Ingress, want.Ingress}, {got.Egress, want.Egress}} {
				if len(l.got) != len(l.want) {
					t.Fatalf("container %d: %v, want %q", i, l.got, l.want)
				}
				for j := range l.got {
					same("entry", l.got[j].Text, &l.want[j])
					if l.got[j].Line < got.Line || l.got[j].Line > lines {
						t.Errorf("entry %v of a container on line %d of %d", l.got[j], got.Line, lines)
					}
				}
			}
		}
	})
}

// checkAllows compares the entries that say what annotations may ask for.
func checkAllows(t *testing.T, c *Config, m mirror) {
	t.Helper()
	if len(c.Allows) != len(m.Allow) {
		t.Fatalf("%d entries, want %d", len(c.Allows), len(m.Allow))
	}
	plain := func(list []Text) []string {
		var texts []string
		for _, text := range list {
			texts = append(texts, text.Text)
		}
		return texts
	}
	for i, want := range m.Allow {
		got := c.Allows[i]
		if got.UnknownOrigin != want.UnknownOrigin || got.Nameable != want.Nameable {
			t.Errorf("%+v, want %+v", got, want)
		}
		for _, l := range []struct {
			got  []Text
			want []string
		}{
			{got.Engines, want.Engines},
			{got.Names, want.Names},
			{got.Annotations, want.Annotations},
			{got.Destinations, want.Destinations},
			{got.Special, want.Special},
			{got.Addresses, want.Addresses},
			{got.Ports, want.Ports},
			{got.Types, want.Types},
			{got.Netns, want.Netns},
			{got.Paths, want.Paths},
		} {
			if !slices.Equal(plain(l.got), l.want) {
				t.Errorf("%q, want %q", plain(l.got), l.want)
			}
		}
	}
}

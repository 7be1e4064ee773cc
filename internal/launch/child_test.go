package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "library.so")
	spaced := filepath.Join(dir, "two words.so")
	for _, path := range []string{library, spaced} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, before, preload, want string
	}{
		{"none", "", "", ""},
		{"alone", "", library, "LD_PRELOAD=" + library},
		{"after others", "a.so:b.so", library, "LD_PRELOAD=a.so:b.so:" + library},
		{"missing", "a.so", filepath.Join(dir, "missing.so"), "LD_PRELOAD=a.so"},
		{"a path with a space", "", spaced, ""},
		{"a path with a colon", "", "/a:b.so", ""},
	} {
		t.Setenv("LD_PRELOAD", tt.before)
		if tt.before == "" {
			os.Unsetenv("LD_PRELOAD")
		}
		env, err := environment(order{Preload: []byte(tt.preload)})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, e := range env {
			if strings.HasPrefix(e, "LD_PRELOAD=") {
				got += e
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		bad := tt.preload != "" && tt.preload != library
		if _, err := environment(order{Preload: []byte(tt.preload), NeedsPreload: true}); (err != nil) != bad {
			t.Errorf("%s, if it is needed: %v", tt.name, err)
		}
	}
}

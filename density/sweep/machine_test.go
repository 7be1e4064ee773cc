package sweep

import (
	"os"
	"path/filepath"
	"testing"
)

// What a machine does not tell is left out of its description.
func TestUnknownFacts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "os-release")
	if err := os.WriteFile(file, []byte("NAME=x\nPRETTY_NAME = \"Debian = 12\" \nno value\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"PRETTY_NAME": `"Debian = 12"`, "NAME": "x", "no value": "", "VERSION": ""} {
		if got := value(file, "=", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := value(file+".none", "=", "NAME"); got != "" {
		t.Errorf("a file that is not there says %q", got)
	}
	// Of a file system without a name here its number is told.
	for dir, want := range map[string]string{"/proc": "0x9fa0", file + ".none": ""} {
		if got := fileSystem(dir); got != want {
			t.Errorf("the file system of %s is %q, want %q", dir, got, want)
		}
	}
}

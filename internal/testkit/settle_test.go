package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What a process was asked for it has done when it is settled.
func TestSettle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cat := exec.Command("cat")
	cat.Stdout = out
	in, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cat.Process.Kill()
		_ = cat.Wait()
	})
	Settle(t, cat.Process.Pid)
	want := ""
	for range 100 {
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		Settle(t, cat.Process.Pid)
		want += "x"
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Fatalf("it has written %q (%v), want %q", got, err, want)
		}
	}
}

package testkit

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program is killed before each of its steps in turn, and then ends by itself.
func TestKillBefore(t *testing.T) {
	CheckLeaks(t)
	prints := func(s Step) bool {
		text := make([]byte, 2)
		s.Read(s.Argument[1], text)
		return s.Number == unix.SYS_WRITE && s.Argument[0] == 1 && text[0] == '+'
	}
	for number := 1; number <= 4; number++ {
		var out bytes.Buffer
		cmd := exec.Command("sh", "-c", "echo -1; (echo child); for i in 1 2 3; do echo +$i; done; exit 7")
		cmd.Stdout = &out
		killed, err := KillBefore(cmd, number, prints)
		if killed != (number < 4) || killed != (err == nil) {
			t.Errorf("step %d: killed %v, %v", number, killed, err)
		}
		if got := strings.Count(out.String(), "+"); got != number-1 || !strings.Contains(out.String(), "child") {
			t.Errorf("step %d: printed %q", number, out.String())
		}
	}
	if _, err := KillBefore(exec.Command("/nowhere"), 1, prints); err == nil {
		t.Error("no error of a program that is not there")
	}
}

package host

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// A pipe whose reader is gone takes no writer along, and does not have it wait. What was written by
// then is read.
func TestLasting(t *testing.T) {
	ours, theirs, err := lasting()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if _, err := theirs.WriteString("last words\n"); err != nil {
		t.Fatal(err)
	}
	if err := ours.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if n, _ := io.Copy(&got, ours); n > 0 {
		t.Logf("%d bytes were copied before the deadline was seen", n)
	}
	rest(&got, ours)
	if got.String() != "last words\n" {
		t.Errorf("read %q", got.String())
	}
	if err := ours.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := theirs.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// SIGPIPE would end this process: Go lets it do so for none but descriptors 1 and 2, so the
	// error counts here.
	full := false
	if err := raw.Control(func(fd uintptr) {
		for range 1 << 10 {
			_, err := unix.Write(int(fd), make([]byte, 4096))
			if errors.Is(err, unix.EAGAIN) {
				full = true
				return
			}
			if err != nil {
				t.Errorf("write without a reader: %v", err)
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !full {
		t.Error("the pipe is never full")
	}
}

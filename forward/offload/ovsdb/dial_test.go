package ovsdb

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Dial waits as long as the queue of a socket is full, and no longer than it may.
func TestFullQueue(t *testing.T) {
	l := testkit.FullListener(t)
	path := l.Addr().String()
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Dial(short, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a full queue: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // those that were there first say nothing
			}()
		}
	}()
	conn, err := Dial(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	back := make([]byte, 1)
	_, err = conn.Write([]byte("a"))
	if _, err2 := io.ReadFull(conn, back); errors.Join(err, err2) != nil || back[0] != 'a' {
		t.Errorf("%q comes back, %v, %v", back, err, err2)
	}
	if _, err := Dial(ctx, path+"x"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
}

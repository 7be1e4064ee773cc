package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
)

// pair is a pair of connected unix sockets.
func pair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conns[i] = conn.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

const stateOf = `{"ociVersion":"1.0.2","fds":["other","seccompFd"],"pid":%d,"metadata":%q,"state":{"ociVersion":"1.0.2","id":"a","status":"creating","bundle":"/"}}`

// Each message is refused for what it says, and a program that could not know is killed only where
// it is shown to be the container's.
func TestListenersRefuse(t *testing.T) {
	d, _ := newDaemon(t)
	m := there(d, "a", "1")
	defer d.drop(m)
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	files := make([]int, 2)
	if err := unix.Pipe2(files, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(files[0])
	defer unix.Close(files[1])
	for _, tt := range []struct {
		name, message string
		files         []int
		says          string
	}{
		{"nothing", "", nil, "receive seccomp listener: unexpected EOF"},
		{"no JSON", "{", nil, "receive seccomp listener: unexpected EOF"},
		{"not a state", "[]", nil, "read container process state: json"},
		{"no listener named", `{"fds":["other"],"pid":1}`, nil, "it names no seccompFd"},
		{"no process", fmt.Sprintf(stateOf, -1, "x"), nil, "-1 is no process"},
		{"an unknown process of nobody", fmt.Sprintf(stateOf, 0, "x"), nil, "no seccomp listener came"},
		{"an unknown process, as the container's", fmt.Sprintf(stateOf, 0, m.Token), files, "no seccomp listener came"},
		{"no token and no listener", fmt.Sprintf(stateOf, os.Getpid(), ""), nil, "no seccomp listener came"},
		{"a file that is no listener", fmt.Sprintf(stateOf, os.Getpid(), ""), files, "no seccomp listener came"},
		{"init, as the container's", fmt.Sprintf(stateOf, 1, m.Token), files, "process 1 is not shown to be the container's: it lives"},
		{"nobody, as the container's", fmt.Sprintf(stateOf, 1<<22+1, m.Token), files, "no seccomp listener came"},
		{"a child of the sender", fmt.Sprintf(stateOf, child.Process.Pid, m.Token), files, "its program is killed"},
	} {
		ours, theirs := pair(t)
		var oob []byte
		if tt.files != nil {
			oob = unix.UnixRights(tt.files...)
		}
		go func() {
			if tt.message != "" {
				_, _, _ = theirs.WriteMsgUnix([]byte(tt.message), oob, nil)
			}
			_ = theirs.CloseWrite()
		}()
		(&listeners{d: d}).take(ours)
		ours.Close()
		answer, err := io.ReadAll(theirs)
		var failed api.Failure
		if err := errors.Join(err, json.Unmarshal(answer, &failed)); err != nil || !strings.Contains(failed.Error, tt.says) {
			t.Errorf("%s: %q, %v; want %q", tt.name, answer, err, tt.says)
		}
	}
	var ended *exec.ExitError
	if err := child.Wait(); !errors.As(err, &ended) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the child has ended with %v", err)
	}
}

// A message that is too long is not read to its end.
func TestReceiveTooLong(t *testing.T) {
	ours, theirs := pair(t)
	go func() { _, _ = io.WriteString(theirs, strings.Repeat(" ", 4*stateMax)) }() // until ours is closed
	if _, _, err := receive(ours); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes or 8 files") {
		t.Error(err)
	}
}

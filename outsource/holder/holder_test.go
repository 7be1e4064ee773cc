package holder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestMain(m *testing.M) {
	if IsChild() {
		Child()
	}
	os.Exit(m.Run())
}

// connection returns the first file to hold, and its other end.
func connection(t *testing.T) (file, peer int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(fds[:]) })
	return fds[0], fds[1]
}

func begin(t *testing.T, path string) *Holder {
	t.Helper()
	h, err := Start(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.End() })
	return h
}

// gone waits until a holder has ended.
func gone(t *testing.T, h *Holder, path string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if err := unix.Kill(h.pid, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d is there: %w", h.pid, err)
		}
		return nil
	})
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, _, _, err := Open(path); !errors.Is(err, ErrNone) {
		t.Errorf("open a holder that has ended: %v", err)
	}
}

// longPath is longer than the address of a socket.
func longPath(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "held")
}

// The next owner has the state and the files that were put last, also one after that.
func TestNextOwner(t *testing.T) {
	path := longPath(t)
	h := begin(t, path)
	first, _ := connection(t)
	_, peer := connection(t)
	for _, state := range []string{"one", "two", "three"} {
		if err := h.Put([]byte(state), []int{first, first, peer}); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", st, err)
	}
	owner := h
	for range 3 {
		if err := owner.Close(); err != nil {
			t.Fatal(err)
		}
		next, state, files, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if string(state) != "three" || len(files) != 3 {
			t.Errorf("%q with %d files", state, len(files))
		}
		var want, got unix.Stat_t
		if err := errors.Join(unix.Fstat(peer, &want), unix.Fstat(files[2], &got)); err != nil || want.Ino != got.Ino {
			t.Errorf("another file: %v", err)
		}
		closeAll(files)
		owner = next
	}
	if err := owner.End(); err != nil {
		t.Error(err)
	}
	gone(t, h, path)
}

// A holder ends with its first file's other end, with an owner and without one, and without files with its owner.
func TestEnds(t *testing.T) {
	for _, owned := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "held")
		h := begin(t, path)
		file, peer := connection(t)
		if err := h.Put(nil, []int{file}); err != nil {
			t.Fatal(err)
		}
		if !owned {
			h.Close()
		}
		if err := unix.Shutdown(peer, unix.SHUT_RDWR); err != nil {
			t.Fatal(err)
		}
		<-h.Ended()
		gone(t, h, path)
		if err := h.End(); err != nil {
			t.Errorf("end it again: %v", err)
		}
	}
	path := filepath.Join(t.TempDir(), "held")
	h := begin(t, path)
	h.Close()
	gone(t, h, path)
}

// A killed holder is noticed, and leaves nothing in the way of the next one.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	h := begin(t, path)
	file, _ := connection(t)
	if err := h.Put(nil, []int{file}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(h.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-h.Ended()
	if err := h.Put(nil, []int{file}); err == nil {
		t.Error("a killed holder holds files")
	}
	if err := Forget(path); err != nil {
		t.Error(err)
	}
	gone(t, h, path)
	next := begin(t, path)
	if err := next.Put([]byte("next"), []int{file}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(next.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-next.Ended()
	third := begin(t, path) // at the socket of the killed one
	if err := third.Put([]byte("third"), []int{file}); err != nil {
		t.Fatal(err)
	}
	third.Close()
	if err := Forget(path); err != nil {
		t.Error(err)
	}
	gone(t, third, path)
}

// A holder whose path is relative leaves no socket.
func TestRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	h := begin(t, "held")
	if err := h.End(); err != nil {
		t.Error(err)
	}
	gone(t, h, "held")
}

// A holder that cannot give its files, or not yet, is there.
func TestShortOfFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	h := begin(t, path)
	file, _ := connection(t)
	if err := h.Put([]byte("state"), []int{file}); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(h.pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(h.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}, nil); err != nil {
		t.Fatal(err)
	}
	h.Close()
	early, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	early.Close()
	if err := unix.Prlimit(h.pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	next, state, files, err := Open(path)
	if err != nil || string(state) != "state" {
		t.Fatalf("%q, %v", state, err)
	}
	closeAll(files)
	if err := next.End(); err != nil {
		t.Error(err)
	}

	listener, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { // as one does whose sendmsg(2) fails
		for range 2 {
			if conn, _, err := unix.Accept4(int(listener.Fd()), unix.SOCK_CLOEXEC); err == nil {
				unix.Close(conn)
			}
		}
	}()
	if _, _, _, err := Open(path); !errors.Is(err, errRefused) {
		t.Errorf("open one that gives nothing: %v", err)
	}
}

// A holder that takes no messages does not hold its owner up.
func TestStopped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	h := begin(t, path)
	file, _ := connection(t)
	if err := unix.Kill(h.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil; i++ {
		if i > 1<<16 {
			t.Fatal("a stopped process takes all messages")
		}
		err = h.Put(make([]byte, 1000), []int{file})
	}
	<-h.Ended()
	if err := unix.Kill(h.pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := Forget(path); err != nil {
		t.Error(err)
	}
	gone(t, h, path)
}

// A message that is none ends nobody but the holder.
func TestMessages(t *testing.T) {
	file, _ := connection(t)
	for name, message := range map[string]struct {
		text  []byte
		files []int
	}{
		"no order":   {[]byte("x"), []int{file}},
		"no files":   {[]byte("kstate"), nil},
		"long":       {make([]byte, stateMax+1), []int{file}},
		"many files": {[]byte("k"), make([]int, filesMax+1)},
	} {
		for i := range message.files {
			message.files[i] = file
		}
		path := filepath.Join(t.TempDir(), "held")
		h := begin(t, path)
		if name == "long" {
			message.text[0] = keepOrder
		}
		if _, _, err := h.conn.WriteMsgUnix(message.text, unix.UnixRights(message.files...), nil); err != nil {
			t.Fatal(err)
		}
		<-h.Ended()
		gone(t, h, path)
	}
	h := begin(t, filepath.Join(t.TempDir(), "held"))
	if err := h.Put(make([]byte, stateMax), []int{file}); !errors.Is(err, errMessage) {
		t.Errorf("a long state: %v", err)
	}
}

// The holder has what SECURITY.md says.
func TestPrivileges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	h := begin(t, path)
	file, _ := connection(t)
	if err := h.Put(nil, []int{file}); err != nil {
		t.Fatal(err)
	}
	h.Close()
	next, _, files, err := Open(path) // now it has begun
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", h.pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads %v, %v", tasks, err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
			if err != nil || !strings.Contains(string(status), want+"\n") {
				t.Errorf("%s has no %q: %v", task, want, err)
			}
		}
	}
	if err := next.End(); err != nil {
		t.Error(err)
	}
}

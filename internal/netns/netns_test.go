package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
)

// Whatever a path leads to, it is opened at once or refused at once: to open a FIFO
// waits for a writer, who never comes here.
func TestOpenSaysWhatIsNoNamespace(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	file, folder := filepath.Join(dir, "file"), filepath.Join(dir, "ns")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{
		"to-fifo": fifo, "to-process": "/proc/self/ns/net", "ns/net": fifo, "round": filepath.Join(dir, "round"), "to-root": "/proc/self/root" + fifo,
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{
		"FIFO": fifo, "link to a FIFO": filepath.Join(dir, "to-fifo"), "file": file, "folder": dir, "device": "/dev/null",
		"another namespace": "/proc/self/ns/mnt", "FIFO in a folder ns": filepath.Join(folder, "net"),
		"FIFO behind a root": "/proc/self/root" + fifo, "link behind a root": filepath.Join(dir, "to-root"), "link of its own": filepath.Join(dir, "round"),
		"program": "/proc/self/exe", "nothing": filepath.Join(dir, "nothing"), "no name": "no-such-namespace-of-a-test",
	} {
		ns, err := Open(path)
		if err == nil {
			ns.Close()
			t.Errorf("%s: was opened", name)
			continue
		}
		if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), filepath.Base(path)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// All the ways in which a namespace can be named lead to it.
func TestOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	own, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	bound, link := filepath.Join(t.TempDir(), "bound"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.WriteFile(bound, nil, 0o600), os.Symlink(bound, link)); err != nil {
		t.Fatal(err)
	}
	open := fmt.Sprintf("/proc/self/fd/%d", own.File().Fd())
	err = thread.Do(func() error { // in a mount namespace of its own
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(open, bound, "", unix.MS_BIND, "")
		}
		for _, path := range []string{open, bound, link} {
			if err == nil {
				err = leadsTo(path, own)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func leadsTo(path string, want *NS) error {
	ns, err := Open(path)
	if err != nil {
		return err
	}
	if ns.Cookie() != want.Cookie() {
		err = fmt.Errorf("%s leads to another namespace", path)
	}
	return errors.Join(err, ns.Close())
}

// Current is about the caller's namespace also while threads of other goroutines enter other
// namespaces and end.
func TestCurrent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	here, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	other, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var threads sync.WaitGroup
	var enough atomic.Bool
	for range 4 {
		threads.Go(func() {
			for !enough.Load() {
				_ = other.Do(func() error { return nil })
			}
		})
	}
	for range 2000 {
		ns, err := Current()
		if err != nil {
			t.Error(err)
			break
		}
		if ns.Cookie() != here.Cookie() {
			t.Error("Current opened another namespace")
		}
		ns.Close()
	}
	enough.Store(true)
	threads.Wait()
}

// In makes no thread where the caller is in the namespace already.
func TestIn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skip: needs root")
	}
	here, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	other, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	caller, want := unix.Gettid(), errors.New("of fn")
	for _, tt := range []struct {
		name    string
		ns      *NS
		callers bool
	}{{"the caller's", here, true}, {"another", other, false}} {
		err := tt.ns.In(func() error {
			if is := unix.Gettid() == caller; is != tt.callers {
				t.Errorf("%s: on the caller's thread: %v, want %v", tt.name, is, tt.callers)
			}
			now, err := Current()
			if err != nil {
				return err
			}
			if now.Cookie() != tt.ns.Cookie() {
				t.Errorf("%s: in another namespace", tt.name)
			}
			return errors.Join(now.Close(), want)
		})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", tt.name, err, want)
		}
	}
}

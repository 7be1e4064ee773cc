package watch

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pair are the ends of a connection, which Go's poller does not wait for.
func pair(t testing.TB) (near, far *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// one reads one message.
func one(t testing.TB, f *os.File) []byte {
	b := make([]byte, 16)
	n, err := f.Read(b)
	if err != nil {
		t.Error(err)
	}
	return b[:n]
}

func say(t testing.TB, f *os.File, text string) {
	t.Helper()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func receive(t testing.TB, c <-chan string) string {
	t.Helper()
	select {
	case text := <-c:
		return text
	case <-time.After(testkit.Patience):
		t.Fatal("nothing came")
		return ""
	}
}

// What is there before and what comes later is told, and what is not read is told again;
// each file's to its own function.
func TestReadyIsToldOfEachFile(t *testing.T) {
	testkit.CheckLeaks(t)
	heard := make(chan string, 100)
	var fars []*os.File
	for i := range 100 { // more than are handed on at once
		near, far := pair(t)
		fars = append(fars, far)
		say(t, far, "early")
		w, err := Start(near, func() bool {
			heard <- fmt.Sprintf("%s at %d", one(t, near), i)
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Wait)
		t.Cleanup(w.Stop)
	}
	expect := func(texts ...string) {
		t.Helper()
		want := map[string]bool{}
		for i := range fars {
			for _, text := range texts {
				want[fmt.Sprintf("%s at %d", text, i)] = true
			}
		}
		for len(want) > 0 {
			got := receive(t, heard)
			if !want[got] {
				t.Fatalf("heard %q, which was not sent or heard before", got)
			}
			delete(want, got)
		}
	}
	expect("early")
	for _, far := range fars {
		say(t, far, "one")
		say(t, far, "two")
	}
	expect("one", "two")
}

// One that takes its time holds up nobody else, and is not called twice at once.
func TestCallsWaitOnlyForTheirOwn(t *testing.T) {
	testkit.CheckLeaks(t)
	slow, toSlow := pair(t)
	quick, toQuick := pair(t)
	began, goOn, heard := make(chan string, 10), make(chan struct{}), make(chan string)
	ws, err := Start(slow, func() bool {
		began <- string(one(t, slow))
		<-goOn
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	wq, err := Start(quick, func() bool {
		heard <- string(one(t, quick))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	say(t, toSlow, "a")
	receive(t, began)
	say(t, toSlow, "b")
	for range 100 {
		say(t, toQuick, "x")
		receive(t, heard)
	}
	if len(began) > 0 {
		t.Error("called again before it had returned")
	}
	goOn <- struct{}{}
	if got := receive(t, began); got != "b" {
		t.Errorf("then %q", got)
	}
	ws.Stop()
	close(goOn)
	ws.Wait()
	wq.Stop()
	wq.Wait()
}

func TestNoCallAfterStop(t *testing.T) {
	testkit.CheckLeaks(t)
	for _, by := range []string{"Stop", "returning false"} {
		near, far := pair(t)
		calls := make(chan string, 10)
		w, err := Start(near, func() bool {
			calls <- string(one(t, near))
			return by == "Stop"
		})
		if err != nil {
			t.Fatal(err)
		}
		say(t, far, "a")
		receive(t, calls)
		if by == "Stop" {
			w.Stop()
		}
		w.Wait()
		// Another watch of the same file is told what this one is not.
		again := make(chan string, 10)
		say(t, far, "b")
		other, err := Start(near, func() bool {
			again <- string(one(t, near))
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := receive(t, again); got != "b" || len(calls) > 0 {
			t.Errorf("%s: %q to the second, %d calls to the first", by, got, len(calls))
		}
		w.Stop()
		other.Stop()
		other.Wait()
	}
}

// Files come and go, with their numbers, while others have something: each hears what was
// sent to it.
func TestNumbersAreReused(t *testing.T) {
	testkit.CheckLeaks(t)
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for j := range 200 {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Error(err)
					return
				}
				near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
				text := fmt.Appendf(nil, "%d-%d", i, j)
				heard := make(chan []byte, 1)
				w, err := Start(near, func() bool {
					heard <- one(t, near)
					return j%2 == 0
				})
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = far.Write(text)
				if got := <-heard; !bytes.Equal(got, text) {
					t.Errorf("%q heard %q", text, got)
				}
				w.Stop()
				near.Close()
				w.Wait()
				far.Close()
			}
		}()
	}
	workers.Wait()
}

func TestNoGoroutineForEach(t *testing.T) {
	testkit.CheckLeaks(t)
	before := runtime.NumGoroutine()
	for range 100 {
		near, _ := pair(t)
		w, err := Start(near, func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines for 100 files", n)
	}
}

func TestWhatCannotBeWatched(t *testing.T) {
	testkit.CheckLeaks(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a plain file, and one that is closed
		if _, err := Start(f, func() bool { return true }); err == nil {
			t.Error("no error")
		}
		f.Close()
	}
}

func BenchmarkReady(b *testing.B) {
	near, far := pair(b)
	done := make(chan string)
	w, err := Start(near, func() bool {
		done <- string(one(b, near))
		return true
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		say(b, far, "x")
		<-done
	}
	w.Stop()
	w.Wait()
}

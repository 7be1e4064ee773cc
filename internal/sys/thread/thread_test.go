package thread_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/thread"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// name is what the test calls its threads.
const name = "thread-of-test"

// named returns the threads of this process that have the name.
func named(t *testing.T) (list []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if err == nil && string(bytes.TrimSpace(comm)) == name {
			list = append(list, file)
		}
	}
	return list
}

// What functions do to their threads goes with the threads, of which none is the main one.
func TestDo(t *testing.T) {
	value, err := unix.BytePtrFromString(name)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			want := fmt.Errorf("error %d", i)
			err := thread.Do(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the main thread")
				}
				if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(value)), 0, 0, 0); err != nil || len(named(t)) == 0 {
					t.Errorf("the thread has no name: %v", err)
				}
				return want
			})
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}()
	}
	all.Wait()
	testkit.Eventually(t, func() error {
		if left := named(t); len(left) > 0 {
			return fmt.Errorf("threads are left: %v", left)
		}
		return nil
	})
}

// A function that ends its goroutine ends the caller's: a test that fails in one does not hang.
func TestDoOfGoexit(t *testing.T) {
	ended := make(chan bool, 1)
	go func() {
		defer func() { ended <- true }()
		err := thread.Do(func() error {
			runtime.Goexit()
			return nil
		})
		t.Errorf("the caller goes on, %v", err)
	}()
	<-ended
}

package forks

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Await waits for a child that was started before it, and for no later one.
func TestAwait(t *testing.T) {
	Await() // for nobody
	c := begin()
	c.began = c.began.Add(time.Hour)
	closed := false
	awaited := make(chan bool)
	go func() {
		Await()
		awaited <- closed
	}()
	closed = true
	c.end()
	if !<-awaited {
		t.Error("a child that had copies was not waited for")
	}
}

// A child that never runs is not waited for.
func TestAwaitStuck(t *testing.T) {
	stuck := begin()
	defer stuck.end()
	stuck.began = stuck.began.Add(-patience)
	Await()
}

// A program that runs has closed all copies when it has closed the file that it got.
func TestStart(t *testing.T) {
	if err := Start(exec.Command("/no/such/program")); err == nil || len(started()) != 0 {
		t.Errorf("a program that does not exist: %v, and %d children", err, len(started()))
	}
	cmd := exec.Command("sh", "-c", "echo runs; read line; exec 3>&-; exec cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := Start(cmd); err != nil {
		t.Fatal(err)
	}
	bufio.NewScanner(stdout).Scan()
	list := started()
	if len(list) != 1 {
		t.Fatalf("%d children have copies, want the one that has not closed its file", len(list))
	}
	if _, err := stdin.Write([]byte("close\n")); err != nil {
		t.Fatal(err)
	}
	<-list[0].closed
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// No child keeps the port of a socket that was closed before Await. Without what Start adds to
// exec.Cmd.Start, children kept 5 % of the ports.
func TestAwaitedPortIsFree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	defer func(usual time.Duration) { patience = usual }(patience)
	patience = testkit.Patience
	own, err := netns.New() // where nobody else chooses the port
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	var starting sync.WaitGroup
	var enough atomic.Bool
	for range 2 {
		starting.Go(func() {
			for !enough.Load() {
				cmd := exec.Command("true")
				if err := Start(cmd); err != nil {
					t.Error(err)
					return
				}
				_ = cmd.Wait()
			}
		})
	}
	taken := 0
	for range 500 {
		err := own.Do(func() error {
			l, err := net.Listen("tcp", "127.0.0.1:9100")
			if err == nil {
				runtime.Gosched() // to what starts programs
				l.Close()
			}
			return err
		})
		if err != nil {
			taken++
		}
		Await()
	}
	enough.Store(true)
	starting.Wait()
	if taken > 0 {
		t.Errorf("a port was not free %d times of 500", taken)
	}
}

package accounts

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Two containers share one network namespace. Whichever ends, the other is charged for the packets.
func TestPodsInterface(t *testing.T) {
	for ends := range 2 {
		pod(t, ends)
	}
}

func pod(t *testing.T, ends int) {
	t.Helper()
	top := testkit.Build(t, testkit.Options{Containers: 1, NoRemote: true})
	a := start(t, func(c *Config) { c.Softirq = true })
	if a.softirq == nil {
		t.Skip("skip: the kernel has no programs at softirqs")
	}
	var groups [2]*cgroups
	for i := range groups {
		groups[i] = group(t, 50*time.Millisecond)
		var first *exec.Cmd
		err := top.Containers[0].Do(func() error {
			first = run(t, groups[i], "exec sleep 1000")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Open(Container{Name: fmt.Sprint("c", i), PID: first.Process.Pid}); err != nil {
			t.Fatal(err)
		}
	}
	a.mu.Lock()
	ended := a.byName[fmt.Sprint("c", ends)]
	err := a.controller.Remove(ended.Account)
	a.forget(ended)
	a.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	a.scan()
	conn := sender(t, top.Host)
	testkit.Eventually(t, func() error {
		for range 100 { // nobody listens there
			if _, err := conn.Write(make([]byte, 64)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
		}
		a.take()
		shown, _, _ := a.Show()
		for _, s := range shown {
			if s.Borrowed[sourceSoftirq] > 0 {
				return nil
			}
		}
		return fmt.Errorf("container %d has ended, and no packet is charged: %+v", ends, shown)
	})
}

// sender returns a socket that sends from a namespace to the first container.
func sender(t *testing.T, from *testkit.Namespace) (conn net.Conn) {
	t.Helper()
	err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", testkit.ContainerAddr4(0).String()+":9")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

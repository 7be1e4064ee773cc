package gate

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A pool keeps a socket for the next supervisor, for some time after its last gate, also if it is
// killed; who has connected meanwhile is heard.
func TestKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	socket, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	inode, err := Inode(socket)
	if err != nil {
		t.Fatal(err)
	}
	// In the test's own namespace: only such pools are asked.
	binary := filepath.Join(testkit.BuildTsugiki(t), Program)
	c := &container{t: t, progress: &progress{}}
	for _, keep := range []time.Duration{testkit.Patience, 100 * time.Millisecond} {
		if c.pool, err = startPool(binary, nil, IdleAfter, socket, keep); err != nil {
			t.Fatal(err)
		}
		pid := c.poolPID(poolName)
		c.must(c.pool.Close())
		if keep < testkit.Patience {
			break
		}
		c.must(unix.Kill(pid, unix.SIGKILL))
		c.eventually("another pool", func() bool { return c.poolPID(poolName) != pid })
		c.must(l.Close())
		c.must(socket.Close())
		conn, err := net.Dial("unix", path)
		c.must(err)
		defer conn.Close()
		if f, err := Kept(inode + 1); f != nil || err != nil {
			t.Errorf("another file: %v, %v", f, err)
		}
		socket = checkKept(t, inode)
		c.killPoolAndSpare()
	}
	c.eventually("pool and spare end", func() bool { return len(c.poolPIDs(poolName))+len(c.poolPIDs(spareName)) == 0 })
	c.must(socket.Close())
	if f, err := Kept(inode); f != nil || err != nil {
		t.Errorf("after the end of the pools: %v, %v", f, err)
	}
}

// Any user of the host can call a process a pool, and give it a file of any inode.
func TestKeptByAStranger(t *testing.T) {
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), poolName)
	if err := testkit.WriteExecutable(path, sleep, 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(path, "1000")
	for len(cmd.ExtraFiles) <= keptFile-3 {
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	inode, err := Inode(file)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := Kept(inode); f != nil || err != nil {
		t.Errorf("taken for the pool's: %v, %v", f, err)
	}
}

// checkKept takes the socket, and hears who has connected.
func checkKept(t *testing.T, inode uint64) *os.File {
	t.Helper()
	f, err := Kept(inode)
	if f == nil || err != nil {
		t.Fatal("the socket is not kept: ", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	return f
}

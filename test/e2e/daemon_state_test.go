package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// refused runs an agent that has to end at once, with one line that says why.
func (d *daemon) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	r := try(t, command(t, d.ns, tsugiki, append([]string{"agent"}, args...)...))
	if exitStatus(r.err) != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, want) {
		t.Errorf("agent %v: %v, printed:\n%swant status 1 and one line with %q", args, r.err, r.stderr, want)
	}
}

func (d *daemon) state() string { return filepath.Join(filepath.Dir(d.run), "state") }

// sleeper starts a container of the daemon that serves a port and does nothing else.
func (d *daemon) sleeper(t *testing.T, name string, number uint16) *server {
	t.Helper()
	return serve(t, d.graft("--name", name,
		"--endpoint", fmt.Sprintf("in type ipv4 addr %s port %d", hostAddr4, number), "-i", "0.0.0.0:80=in",
		"--", "python3", "-m", "http.server", "80"), port{d.ns, "tcp4", number})
}

// A second daemon with a directory of the first is refused, and nothing of the
// first is touched.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	d.sleeper(t, "one", 8081)
	d.refused(t, "another agent", "--run-dir", d.run, "--state-dir", t.TempDir())
	d.refused(t, "another agent", "--run-dir", t.TempDir(), "--state-dir", d.state())
	if ps := d.ps(); !strings.Contains(ps, "one ") {
		t.Errorf("tsugiki ps prints\n%s", ps)
	}
	waitOK(t, w.srv, "http://"+hostAddr4+":8081/")
}

// A daemon that is older than the state is refused, and so is one that cannot
// read it; the container goes on, and the right daemon finds it again.
func TestDaemonAndItsState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	d.sleeper(t, "one", 8082)
	d.kill()
	db := filepath.Join(d.state(), "state.db")
	good, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--run-dir", d.run, "--state-dir", d.state()}

	newer, err := bbolt.Open(db, 0o600, nil)
	if err == nil {
		err = newer.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("version"), []byte("99")) })
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := newer.Close(); err != nil {
		t.Fatal(err)
	}
	was, _ := os.ReadFile(db)
	d.refused(t, "newer tsugiki", args...)
	if is, _ := os.ReadFile(db); string(is) != string(was) {
		t.Error("a state that is too new was changed")
	}
	if err := os.WriteFile(db, []byte("this is no database, it is far too short for one"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.refused(t, "state cannot be kept", args...)
	waitOK(t, w.srv, "http://"+hostAddr4+":8082/")

	if err := os.WriteFile(db, good, 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	if ps := d.ps(); !strings.Contains(ps, "one ") {
		t.Errorf("tsugiki ps prints\n%s", ps)
	}
}

// Where the state cannot be written, no container is taken, and nothing of it is
// left; those that are there go on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	d := startDaemon(t, w.h, "--state-dir", dir)
	d.sleeper(t, "one", 8083)
	fill, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	fill.Close()
	full := false
	for i := range 200 { // until the database has no page left
		r := try(t, d.graft("--name", fmt.Sprintf("more-%d", i), "-e", "0.0.0.0/0=0.0.0.0", "--", "sleep", "0"))
		if r.err == nil {
			continue
		}
		full = true
		if exitStatus(r.err) != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "no space left on device") {
			t.Errorf("%v, printed:\n%s", r.err, r.stderr)
		}
		break
	}
	if !full {
		t.Fatal("the database found room on a full disk")
	}
	if ps := d.ps(); strings.Contains(ps, "more-") || !strings.Contains(ps, "one ") {
		t.Errorf("tsugiki ps prints\n%s", ps)
	}
	if err := os.Remove(fill.Name()); err != nil {
		t.Fatal(err)
	}
	succeed(t, d.graft("--name", "after", "-e", "0.0.0.0/0=0.0.0.0", "--", "true"))
	waitOK(t, w.srv, "http://"+hostAddr4+":8083/")
}

// A state directory in which nothing can be written is said so.
func TestStateThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := &daemon{ns: w.h}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.refused(t, "--state-dir", "--run-dir", t.TempDir(), "--state-dir", filepath.Join(file, "state"))
	d.refused(t, "--run-dir", "--run-dir", filepath.Join(file, "run"), "--state-dir", t.TempDir())
}

// What an engine or a user asks for at the same host port is refused at the start,
// also before anybody listens there.
func TestPromisedPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	web := "0.0.0.0:80=" + hostAddr4 + ":8084"
	start(t, d.graft("--name", "one", "-i", web, "--", "sleep", "1000"))
	testkit.Eventually(t, func() error {
		if !strings.Contains(d.ps(), hostAddr4+":8084->0.0.0.0:80") {
			return fmt.Errorf("tsugiki ps prints\n%s", d.ps())
		}
		return nil
	})
	for _, rule := range []string{web, "0.0.0.0:81=0.0.0.0:8084"} {
		r := try(t, d.graft("--name", "two", "-i", rule, "--", "true"))
		if exitStatus(r.err) != 1 || !strings.Contains(r.stderr, "reserved for container one") {
			t.Errorf("%s: %v, printed:\n%s", rule, r.err, r.stderr)
		}
	}
	r := try(t, d.graft("--name", "one", "-i", "0.0.0.0:80="+hostAddr4+":8085", "--", "true"))
	if exitStatus(r.err) != 1 || !strings.Contains(r.stderr, "a container one runs") {
		t.Errorf("the same name: %v, printed:\n%s", r.err, r.stderr)
	}
	succeed(t, d.graft("--name", "two", "-i", "0.0.0.0:80="+hostAddr4+":8085", "--", "true"))
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// listening listens at its own loopback, which waits for the agent, for each line that it reads.
const listening = `
import socket, sys
print("ready", flush=True)
for line in sys.stdin:
    socket.create_server(("127.0.0.1", 0))
    print("listens", flush=True)
`

// supervising takes a gate's adoption socket until standard input ends.
const supervising = `
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.recvmsg(4096, 256)
print("supervises", flush=True)
sys.stdin.read()
`

// An agent takes over a container late, if something was in the way that passes. A call that needs
// the agent waits until then.
func TestDaemonTakesOverLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := startDaemon(t, w.h)
	bin, keeper := withoutKeeper(t)
	program := hold(t, d.graft(append(variants[1].flags(w), "--name", "late", "--", python(t), "-c", listening)...), "ready")
	for _, test := range []struct {
		name  string
		begin func() (end func())
	}{
		{"no keeper starts", func() func() {
			d.bin = filepath.Join(bin, "tsugiki")
			return func() {
				if err := os.Rename(keeper, filepath.Join(bin, "tsugiki-keeper")); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"another process supervises the gate", func() func() {
			gates, err := filepath.Glob(filepath.Join(d.run, "gates/late/*"))
			if err != nil || len(gates) != 1 {
				t.Fatalf("the container has the gates %v, %v", gates, err)
			}
			other := hold(t, commandIn(timeout(t), t, w.h, python(t), "-c", supervising, gates[0]), "supervises")
			return func() { other.release() }
		}},
	} {
		d.kill()
		end := test.begin()
		if _, err := fmt.Fprintln(program.stdin, test.name); err != nil {
			t.Fatal(err)
		}
		d.log = &syncBuffer{}
		d.start()
		d.log.await(t, "container not taken over yet")
		end()
		d.log.await(t, "container taken over")
		program.await("listens")
	}
	d.kill()
	d.log = &syncBuffer{} // but for the faults that it has to have logged
	d.start()
	program.release()
}

// withoutKeeper makes a directory with tsugiki, its programs, and a keeper that cannot be started. That
// one is to be replaced by the file keeper.
func withoutKeeper(t *testing.T) (dir, keeper string) {
	t.Helper()
	dir = t.TempDir()
	keeper = filepath.Join(dir, "keeper")
	from := filepath.Dir(tsugiki)
	err := copyFile(filepath.Join(dir, "tsugiki"), tsugiki) // a link would lead to the programs beside it
	for _, name := range binaries(t) {
		if err == nil && name != "tsugiki" && name != "tsugiki-keeper" {
			err = os.Symlink(filepath.Join(from, name), filepath.Join(dir, name))
		}
	}
	if err == nil {
		err = os.Symlink(filepath.Join(from, "tsugiki-keeper"), keeper)
	}
	if err == nil {
		err = testkit.WriteExecutable(filepath.Join(dir, "tsugiki-keeper"), []byte("#!/dead"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, keeper
}

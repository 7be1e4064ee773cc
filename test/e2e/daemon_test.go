package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/engines"
)

var kills = flag.Int("kills", testkit.Times(8, 100), "how often TestDaemonKilledUnderLoad kills the daemon")

// daemon is a node daemon that can be killed and started again.
type daemon struct {
	t    *testing.T
	ns   *testkit.Namespace
	run  string
	bin  string // "": tsugiki
	args []string
	rig  *engines.Rig // in whose mount namespace it runs; or nil
	log  *syncBuffer
	cmd  *testkit.Cmd
	ctx  context.Context // of what it grafts; nil: timeout's
}

// startDaemon starts one with directories of its own, which are short enough for
// sockets.
func startDaemon(t *testing.T, ns *testkit.Namespace, args ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "tsugiki-")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, ns: ns, run: filepath.Join(dir, "run"), log: &syncBuffer{}}
	if !slices.Contains(args, "--config") {
		args = append(args, "--config", configure(t, dir))
	}
	d.args = append([]string{"agent", "--run-dir", d.run, "--state-dir", filepath.Join(dir, "state")}, args...)
	t.Cleanup(func() {
		d.end()
		if left, _ := filepath.Glob(filepath.Join(d.run, "gates", "*")); len(left) > 0 {
			t.Errorf("the agent has left %v", left)
		}
		os.RemoveAll(dir)
	})
	d.start()
	return d
}

// configure writes the configuration of an agent. One that charges looks for
// containers only where it says so: other tests have theirs on the same machine.
func configure(t *testing.T, dir string, lines ...string) string {
	t.Helper()
	if !slices.Contains(lines, "[charge]") {
		lines = append(lines, "[charge]", "discovery = false")
	}
	file := filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start starts the daemon, and waits until it serves.
func (d *daemon) start() {
	d.t.Helper()
	// Not with a test's limit: it ends after what the test has started.
	words := append([]string{cmp.Or(d.bin, tsugiki)}, d.args...)
	if d.rig != nil {
		words = append([]string{"nsenter", "--mount=" + d.rig.Mounts(), "--"}, words...)
	}
	d.cmd = commandIn(context.Background(), d.t, d.ns, words[0], words[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.await()
}

func (d *daemon) await() {
	d.t.Helper()
	testkit.Eventually(d.t, func() error {
		if state(d.cmd.Process.Pid) == 0 {
			d.t.Fatalf("the agent has ended:\n%s", d.log)
		}
		conn, err := net.Dial("unix", d.socket())
		if err == nil {
			conn.Close()
		}
		return err
	})
}

func (d *daemon) socket() string { return api.SocketIn(d.run) }

// kill kills the daemon without a warning.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it is there
	_ = d.cmd.Wait()
}

// end stops the daemon at the end of its test, and shows its log if that has failed.
func (d *daemon) end() {
	d.stop()
	if d.t.Failed() {
		d.t.Logf("agent printed:\n%s", d.log)
	}
}

// stop asks the daemon to end.
func (d *daemon) stop() {
	if d.cmd == nil || d.cmd.ProcessState != nil {
		return
	}
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Error(err)
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("the agent ended with %v", err)
	}
	checkLog(d.t, d.cmd, d.log.String())
}

// graft prepares tsugiki run with a container of the daemon.
func (d *daemon) graft(args ...string) *testkit.Cmd {
	d.t.Helper()
	if d.ctx == nil {
		return d.graftIn(timeout(d.t), args...)
	}
	return d.graftIn(d.ctx, args...)
}

// graftIn is graft with a limit of the caller's.
func (d *daemon) graftIn(ctx context.Context, args ...string) *testkit.Cmd {
	d.t.Helper()
	return commandIn(ctx, d.t, d.ns, tsugiki, append([]string{"run", "--run-dir", d.run}, args...)...)
}

// ps is what tsugiki ps prints.
func (d *daemon) ps() string {
	d.t.Helper()
	return succeed(d.t, command(d.t, d.ns, tsugiki, "ps", "--agent", d.socket()))
}

// Containers and all that they do go on while the daemon is killed, again and again,
// and another takes over. No call fails, whether it is answered without the daemon or
// has to wait for the next one, and no connection is lost.
func TestDaemonKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nginx", "wrk", "redis-server", "redis-benchmark", "python3"} {
		testkit.Program(t, name)
	}
	w := newWorld(t)
	d := startDaemon(t, w.h)
	ctx := unlimited(t)
	d.ctx = ctx
	echo := startEcho(ctx, t, w.srv)

	redis := []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 16379", "-i", "0.0.0.0:" + redisPort + "=in", "--"}
	serve(t, d.graft(append(redis, redisServer(t, "0.0.0.0")...)...), port{w.h, "tcp4", 16379})
	upstream := newNginx(t, "listen 9090;", "access_log off;")
	up := upstream.line()
	serve(t, commandIn(ctx, t, w.srv, up[0], up[1:]...), port{w.srv, "tcp", 9090})
	proxy := newNginx(t, "listen 8080;", "access_log off;", "location / { proxy_pass http://"+remoteAddr4+":9090; }")
	serve(t, d.graft(slices.Concat(variants[0].flags(w), ingress(8080), []string{"--"}, proxy.line())...), port{w.h, "tcp", 8080})

	var callers []*server
	for _, v := range both {
		for _, m := range modes[:2] {
			v.mode = m
			first := 7000 + 100*len(callers)
			callers = append(callers, start(t, d.graft(slices.Concat(v.flags(w), []string{
				"--endpoint", "in type ipv4 addr " + hostAddr4 + " port dynamic", "-i", fmt.Sprintf("0.0.0.0:%d-%d=in", first, first+7),
				"--", "python3", "testdata/calls.py", remoteAddr4, fmt.Sprint(echo), fmt.Sprint(echo), fmt.Sprint(first),
			})...)))
		}
	}
	for _, c := range callers {
		testkit.Eventually(t, func() error {
			if !strings.Contains(c.output.String(), "begun") {
				return errors.New("a caller has not begun")
			}
			return nil
		})
	}

	done := make(chan struct{})
	var load sync.WaitGroup
	again := func(check func(*testing.T, string), line func() *testkit.Cmd) {
		load.Add(1)
		go func() {
			defer load.Done()
			for {
				select {
				case <-done:
					return
				default:
					out, err := line().CombinedOutput()
					if err != nil {
						t.Errorf("%v\n%s", err, out)
						return
					}
					check(t, string(out))
				}
			}
		}()
	}
	once := []string{"-t", "1", "-c", "4", "-d", "2s", "--timeout", "60s", "-H", "Connection: close", "--latency"}
	again(noErrors, func() *testkit.Cmd {
		return command(t, w.srv, "wrk", append(once, "http://"+hostAddr4+":8080/")...)
	})
	again(noErrors, func() *testkit.Cmd { // each of its connections is moved by the daemon
		v := both[1]
		v.mode = modes[1]
		return d.graftIn(timeout(t), slices.Concat(v.flags(w), []string{"--name", "wrk", "--", "wrk"}, once, []string{"http://" + remoteAddr4 + ":9090/"})...)
	})
	again(checkRedisBenchmark, func() *testkit.Cmd {
		bench := redisBenchmark(hostAddr4, "16379")
		return command(t, w.srv, bench[0], bench[1:]...)
	})

	for range *kills {
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		d.kill()
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		d.start()
	}
	close(done)
	load.Wait()
	for _, c := range callers {
		c.stop(t)
		t.Logf("%s", c.output)
		if !strings.Contains(c.output.String(), "\nwrong\n0\n") {
			t.Errorf("a caller's calls went wrong:\n%s", c.output)
		}
	}
	proxy.checkErrors(t)
	upstream.checkErrors(t)
}

func noErrors(t *testing.T, report string) {
	t.Helper()
	if wrkRequests.FindStringSubmatch(report) == nil || strings.Contains(report, "Socket errors") || strings.Contains(report, "Non-2xx") {
		t.Errorf("wrk printed:\n%s", report)
	}
}

// startEcho echoes streams and datagrams at one port, which it returns.
func startEcho(ctx context.Context, t *testing.T, ns *testkit.Namespace) int {
	t.Helper()
	const number = 9007
	code := `
import socketserver, threading
class T(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(4096): self.request.sendall(data)
class U(socketserver.BaseRequestHandler):
    def handle(self): self.request[1].sendto(self.request[0], self.client_address)
class TS(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 128
t = TS(("", 9007), T)
u = socketserver.UDPServer(("", 9007), U)
threading.Thread(target=u.serve_forever, daemon=True).start()
t.serve_forever()
`
	serve(t, commandIn(ctx, t, ns, "python3", "-c", code), port{ns, "tcp", number}, port{ns, "udp", number})
	return number
}

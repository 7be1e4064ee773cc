package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// scripts/kernels runs this test on other kernels. Either doctor misses nothing that is required,
// and clients and servers work. Or tsugiki run and the agent refuse to start, and name a feature that
// doctor misses. An agent that lacks cgroup v2 can charge: it starts, and says what it cannot do.
func TestKernelWorksOrIsRefused(t *testing.T) {
	t.Parallel()
	var missing []string
	for _, f := range findings(t, here(t, "doctor", "-j")) {
		if f.Required && f.state() != "present" {
			missing = append(missing, regexp.QuoteMeta(f.Name))
		}
	}
	if len(missing) == 0 {
		kernelWorks(t, newWorld(t))
		return
	}
	dir := t.TempDir()
	refused := refusal{status: 1, says: []string{strings.Join(missing, "|")}}
	refused.judge(t, here(t, "run", "--run-dir", dir, "--", "touch", dir+"/marker"), dir+"/marker")
	if slices.Contains(missing, "cgroup v2") {
		startAgent(t, newWorld(t)).log.await(t, "no cgroup v2 hierarchy is mounted")
		return
	}
	agent := here(t, "agent", "--run-dir", dir, "--state-dir", dir, "--config", configure(t, dir))
	refused.judge(t, agent, dir+"/agent.sock")
}

// here runs tsugiki in the namespaces of the test: testkit cannot make others on each kernel.
func here(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(timeout(t), tsugiki, args...)
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	return result{stdout.String(), stderr.String(), err}
}

// kernelWorks has a client and a server in each kind of container. One of the last kind has its
// sockets swapped at a trapped call.
func kernelWorks(t *testing.T, w *world) {
	t.Helper()
	observe(t, w.srv)
	for i, v := range variants {
		port := 8080 + i
		in := fmt.Sprintf("in type ipv4 addr %s port %d", hostAddr4, port)
		o := w.obey(t, t.TempDir(), append(v.flags(w), "--endpoint", in, "-i", fmt.Sprintf("0.0.0.0:%d=in", port))...)
		o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
		o.want(sourceAddr4, "dial b udp %s", remoteObserver())
		o.want(sourceAddr6, "dial c tcp %s", net.JoinHostPort(remoteAddr6, fmt.Sprint(observerPort)))
		o.want("listens", "listen d 0.0.0.0:%d", port)
		url := fmt.Sprintf("http://%s:%d/", hostAddr4, port)
		if got := strings.TrimSpace(succeed(t, command(t, w.srv, static(t, "fetch"), url))); got != remoteAddr4 {
			t.Errorf("%s: a client at %s is %s for the server", v.name, remoteAddr4, got)
		}
		o.want("listens", "listen e 127.0.0.1:9100")
		o.want("127.0.0.1", "dial f tcp 127.0.0.1:9100")
		o.release()
	}
}

// scripts/kernels runs this test before the others of its kind, to build their programs outside of
// the virtual machine.
func TestProgramsAreBuilt(t *testing.T) {
	t.Parallel()
	for _, path := range []string{static(t, "obey"), attackProgram(t, "static")} {
		if got := succeed(t, command(t, newWorld(t).h, "test", "-x", path)); got != "" {
			t.Errorf("test prints %q", got)
		}
	}
}

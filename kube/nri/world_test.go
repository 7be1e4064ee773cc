package nri

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	agent "github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

var silent = slog.New(slog.DiscardHandler)

// fakeAgent registers containers as it is told.
type fakeAgent struct {
	mu         sync.Mutex // guards what follows
	answer     agent.Registered
	err        error
	hold       chan struct{} // before it registers; nil: answers come at once
	holdEnd    chan struct{} // the same before it unregisters, and says which containers it has
	asked      []agent.Registration
	registered map[string]string // ids by names
	pids       map[string]int    // by names
	gone       []string          // names that were unregistered
	changed    chan struct{}
}

func newFakeAgent() *fakeAgent {
	return &fakeAgent{
		answer: agent.Registered{
			Graft: true, Token: "secret", Listener: "/run/tsugiki/seccomp.sock", Filter: agent.Filter{Mode: "auto"}, Library: "/opt/tsugiki/lib/tsugiki",
		},
		registered: map[string]string{}, changed: make(chan struct{}, 64),
	}
}

func (a *fakeAgent) Register(r agent.Registration) (agent.Registered, error) {
	a.mu.Lock()
	a.asked = append(a.asked, r)
	hold := a.hold
	a.mu.Unlock()
	if hold != nil {
		<-hold
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.answer
	answer.Name = r.Name
	if a.err != nil || !answer.Graft {
		return answer, a.err
	}
	a.registered[r.Name] = r.ID
	return answer, nil
}

// wait waits while the agent is held.
func (a *fakeAgent) wait() {
	a.mu.Lock()
	hold := a.holdEnd
	a.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

func (a *fakeAgent) Unregister(name, id string) error {
	a.wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.registered[name] != id {
		return agent.ErrNotFound
	}
	delete(a.registered, name)
	a.gone = append(a.gone, name)
	a.changed <- struct{}{}
	return nil
}

func (a *fakeAgent) Containers() (list []agent.Container, err error) {
	a.wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, id := range a.registered {
		list = append(list, agent.Container{Name: name, ID: id, PID: a.pids[name]})
	}
	return list, nil
}

func (a *fakeAgent) has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, is := a.registered[name]
	return is
}

// last is the name that the agent was asked for last.
func (a *fakeAgent) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.asked) == 0 {
		return ""
	}
	return a.asked[len(a.asked)-1].Name
}

// lost waits until a container is not registered.
func (a *fakeAgent) lost(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if a.has(name) {
			return fmt.Errorf("container %s stays registered", name)
		}
		return nil
	})
}

// set changes what the agent answers.
func (a *fakeAgent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// pod is a pod that asks to be grafted.
func pod() *api.PodSandbox {
	return &api.PodSandbox{
		Id: "5a", Name: "web", Namespace: "shop", Uid: "u1",
		Annotations: map[string]string{agent.AnnotationGraft: "true"},
	}
}

// container is one of that pod, as containerd 2.4 describes it.
func container() *api.Container {
	return &api.Container{
		Id: "c1", PodSandboxId: "5a", Name: "main", Env: []string{"A=B", "LD_PRELOAD=/x.so"},
		Mounts: []*api.Mount{{Destination: "/dev", Type: "tmpfs"}}, User: &api.User{Uid: 1000, Gid: 100},
		Linux: &api.LinuxContainer{
			Namespaces: []*api.LinuxNamespace{{Type: "network", Path: "/var/run/netns/x"}, {Type: "mount"}},
			SeccompPolicy: &api.LinuxSeccomp{
				DefaultAction: "SCMP_ACT_ERRNO", Architectures: []string{"SCMP_ARCH_X86_64"},
				Syscalls: []*api.LinuxSyscall{{Names: []string{"read", "connect", "socket"}, Action: "SCMP_ACT_ALLOW"}},
			},
		},
	}
}

const name = "shop.web.main"

// runtime is containerd's side of NRI.
type runtime struct {
	*adaptation.Adaptation
	t *testing.T

	mu         sync.Mutex // guards what follows
	pods       []*api.PodSandbox
	containers []*api.Container
}

// set has these pods and containers run.
func (r *runtime) set(pods []*api.PodSandbox, containers []*api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods, r.containers = pods, containers
}

// startRuntime serves NRI at a socket.
func startRuntime(t *testing.T, socket string) *runtime {
	t.Helper()
	adaptation.SetPluginRequestTimeout(testkit.Patience)
	r := &runtime{t: t}
	var err error
	r.Adaptation, err = adaptation.New("containerd", "2.4.2", func(ctx context.Context, sync adaptation.SyncCB) error {
		r.mu.Lock()
		pods, containers := r.pods, r.containers
		r.mu.Unlock()
		_, err := sync(ctx, pods, containers)
		return err
	}, func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(filepath.Join(t.TempDir(), "none")))
	if err == nil {
		err = r.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// create asks for a container until a plugin has been asked, and returns what it answered.
func (r *runtime) create(p *api.PodSandbox, c *api.Container, asked func() bool) (*api.ContainerAdjustment, error) {
	r.t.Helper()
	var answer *api.CreateContainerResponse
	var failed error
	testkit.Eventually(r.t, func() error {
		answer, failed = r.CreateContainer(r.t.Context(), &api.CreateContainerRequest{Pod: p, Container: c})
		if !asked() {
			return errors.New("no plugin has been asked")
		}
		return nil
	})
	return answer.GetAdjust(), failed
}

// run runs a plugin until the test ends.
func run(t *testing.T, a Agent, socket string) {
	t.Helper()
	runPlugin(t, newPlugin(a), socket)
}

// newPlugin makes a plugin whose agent may be slow, also where containerd has not configured it.
func newPlugin(a Agent) *Plugin {
	p := New(a, silent)
	p.limits.Store(limitsFor(testkit.Patience))
	return p
}

func runPlugin(t *testing.T, p *Plugin, socket string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, socket) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func socketOf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "nri.sock")
}

// road leads from a socket of its own to another one, and can be cut.
type road struct {
	at   string
	lost chan struct{} // for each loss

	mu    sync.Mutex // guards what follows
	conns []net.Conn
	text  string
}

func newRoad(t *testing.T, to string) *road {
	t.Helper()
	r := &road{at: filepath.Join(filepath.Dir(to), "road.sock"), lost: make(chan struct{}, 1024)}
	l, err := net.Listen("unix", r.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); r.cut() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			conn, err := net.Dial("unix", to)
			if err != nil {
				from.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, from, conn)
			text := r.text
			r.mu.Unlock()
			go r.carry(conn, from, "")
			go r.carry(from, conn, text)
		}
	}()
	return r
}

// carry copies messages until one side ends. It loses those that have a text. Before each message are the
// number of its connection and its length (multiplex of NRI).
func (r *road) carry(to, from net.Conn, text string) {
	defer to.Close()
	defer from.Close()
	for head := make([]byte, 8); ; {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(from, message); err != nil {
			return
		}
		if text != "" && bytes.Contains(message, []byte(text)) {
			r.lost <- struct{}{}
			continue
		}
		if _, err := to.Write(append(head, message...)); err != nil {
			return
		}
	}
}

// lose has connections from now on lose what has a text; empty: nothing.
func (r *road) lose(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = text
}

// cut ends all connections.
func (r *road) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

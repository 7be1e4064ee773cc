// Package nri is a plugin of NRI that grafts the containers of pods which ask for it by an annotation, and
// have no RuntimeClass. containerd asks the plugin about each container before it makes the container.
//
// It owns the conversation with containerd, and what it answers. What a container is given is the agent's
// to say, and how a grafted container differs from another one is package oci's. It keeps no state. It
// needs NRI's socket, which is root's, and the agent's, and so CAP_NET_ADMIN.
//
// # Theory of operation
//
// containerd makes a container without a plugin that is not there, has closed the connection, or does not
// answer within plugin_request_timeout. An error that a plugin answers is the container's. So everything
// that goes wrong here becomes an error in time: a panic would close the connection.
//
//	CreateContainer	registers the container with the agent, which waits for the grant of the
//		pod. The answer of the agent becomes the adjustment: a seccomp profile, a
//		mount and a variable. containerd keeps the adjusted process, and executes
//		later programs of the container as it is.
//	StopContainer	unregisters it. containerd says so of a container that has ended, that
//	RemoveContainer	could not be made, or that is removed.
//	Synchronize	unregisters containers that were made without this plugin after it had
//		registered them: containerd did not wait for the answer.
//
// The agent answers that it has unregistered a container when nothing of it is left. containerd does not
// wait for that (end.go): only the next container of the same name does.
//
// The agent itself notices the end of a container, and removes a registration that no program has used for
// two minutes. To unregister makes the name free at once, as the next container of the pod needs it.
//
// NRI calls one plugin at a time, for the whole node. So nothing here waits for longer than a share of
// plugin_request_timeout (limits).
package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	agent "github.com/tsugiki/tsugiki/api"
)

const (
	// Name and Index are the plugin's, as containerd's configuration has them (required_plugins). Plugins
	// are asked in the order of their indices: a late one sees what others have adjusted.
	Name  = "tsugiki"
	Index = "90"
)

// again is the pause before another connection. While there is none, containers are made without the
// plugin; to look for a socket costs little.
const again = 100 * time.Millisecond

// Agent is the node's agent. api.Client is one.
type Agent interface {
	Register(agent.Registration) (agent.Registered, error)
	Unregister(name, id string) error
	Containers() ([]agent.Container, error)
}

// Plugin answers containerd.
type Plugin struct {
	agent  Agent
	log    *slog.Logger
	limits atomic.Pointer[limits]
	// asked returns the time that containerd has said that it waits for an answer.
	asked func() time.Duration

	mu     sync.Mutex            // guards what follows
	ending map[end]chan struct{} // closed when the agent has answered
}

// New makes a plugin.
func New(a Agent, log *slog.Logger) *Plugin {
	p := &Plugin{agent: a, log: log, asked: func() time.Duration { return stub.DefaultRequestTimeout }, ending: map[end]chan struct{}{}}
	p.limits.Store(limitsFor(stub.DefaultRequestTimeout))
	return p
}

// limits are the times of an answer.
type limits struct {
	answer time.Duration // for the whole of it
	grant  time.Duration // of that, for the grant of the pod to come
}

// grantMax is the longest wait for a grant. The kubelet tries again later, and others wait meanwhile.
const grantMax = time.Second

// limitsFor shares the time that containerd waits for an answer: a quarter is for the way.
func limitsFor(request time.Duration) *limits {
	answer := request * 3 / 4
	return &limits{answer: answer, grant: min(grantMax, answer*2/3)}
}

// Run connects to NRI at a socket, and again whenever the connection ends, until ctx ends. If containerd
// has started this process as a plugin, Run returns with that connection.
func (p *Plugin) Run(ctx context.Context, socket string) error {
	if os.Getenv(api.PluginSocketEnvVar) != "" {
		s, err := p.stub()
		if err == nil {
			err = s.Run(ctx)
		}
		return ended(ctx, err)
	}
	told := ""
	for {
		connected, err := p.session(ctx, socket)
		if ctx.Err() != nil {
			return nil
		}
		if text := fmt.Sprint(err); connected || text != told {
			p.log.Warn("no connection to NRI: pods that ask for it by an annotation are not grafted", "err", err)
			told = text
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil
		}
	}
}

// ended returns the error of a connection that ctx did not end.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the connection to containerd has ended: %w", err)
}

// stub makes the plugin's side of a connection.
func (p *Plugin) stub(o ...stub.Option) (stub.Stub, error) {
	s, err := stub.New(p, append(o, stub.WithLogger(logger{p.log}))...)
	if err == nil {
		p.asked = s.RequestTimeout
	}
	return s, err
}

// session has one connection until it ends.
func (p *Plugin) session(ctx context.Context, socket string) (connected bool, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	w := &watched{Conn: conn, ended: make(chan struct{})}
	s, err := p.stub(stub.WithPluginName(Name), stub.WithPluginIdx(Index), stub.WithConnection(w))
	if err != nil {
		return false, err
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case err = <-done:
		return true, err
	case <-w.ended:
	}
	// A stub whose connection ends between its registration and its configuration waits for ever
	// (Start of NRI 0.12). It is left behind.
	select {
	case err = <-done:
		return true, err
	case <-time.After(time.Second):
		return true, errors.New("the connection ended before containerd had configured the plugin")
	}
}

// watched is a connection that tells when it has ended.
type watched struct {
	net.Conn
	told  atomic.Bool
	ended chan struct{}
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil && w.told.CompareAndSwap(false, true) {
		close(w.ended)
	}
	return n, err
}

// logger has the stub write to a slog.Logger.
type logger struct{ *slog.Logger }

func (l logger) Debugf(_ context.Context, format string, args ...any) {
	l.Debug(fmt.Sprintf(format, args...))
}

func (l logger) Infof(_ context.Context, format string, args ...any) {
	l.Info(fmt.Sprintf(format, args...))
}

func (l logger) Warnf(_ context.Context, format string, args ...any) {
	l.Warn(fmt.Sprintf(format, args...))
}

func (l logger) Errorf(_ context.Context, format string, args ...any) {
	l.Error(fmt.Sprintf(format, args...))
}

package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// agents are those of all nodes, behind their API at unix sockets.
type agents struct {
	dir     string
	servers []*http.Server
	running sync.WaitGroup

	mu     sync.Mutex // guards what follows
	change *change    // nil: none is awaited
}

// change is one that all nodes follow by putting grants.
type change struct {
	began time.Time
	want  int // pods
	right func(*api.Grant) bool
	pods  map[string]bool          // that have the right grant, by UID
	nodes map[string]time.Duration // when the last of a node's was put
	done  chan struct{}            // closed when all pods have it
}

// socket is the path of a node's socket.
func (a *agents) socket(node string) string { return filepath.Join(a.dir, node+".sock") }

// add serves the agent of a node.
func (a *agents) add(node string, agent kubetest.PodAgent) error {
	l, err := net.Listen("unix", a.socket(node))
	if err != nil {
		return fmt.Errorf("agent of %s: %w", node, err)
	}
	s := &http.Server{Handler: kubetest.Handler(&recorder{agent, node, a}), ReadHeaderTimeout: time.Minute}
	a.servers = append(a.servers, s)
	a.running.Go(func() { _ = s.Serve(l) })
	return nil
}

func (a *agents) close() error {
	var errs []error
	for _, s := range a.servers {
		errs = append(errs, s.Close())
	}
	a.running.Wait()
	return errors.Join(errs...)
}

// await begins to note which pods have a grant that is right.
func (a *agents) await(pods int, right func(*api.Grant) bool) *change {
	c := &change{
		began: time.Now(), want: pods, right: right, pods: map[string]bool{}, nodes: map[string]time.Duration{}, done: make(chan struct{}),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change = c
	return c
}

// has returns how many pods have the right grant, and when each node has put its last one.
func (a *agents) has(c *change) (pods int, nodes map[string]time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(c.pods), maps.Clone(c.nodes)
}

// put notes a grant that an agent has.
func (a *agents) put(node, uid string, g *api.Grant) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.change
	if c == nil || c.pods[uid] || !c.right(g) {
		return
	}
	c.pods[uid] = true
	c.nodes[node] = now.Sub(c.began)
	if len(c.pods) == c.want {
		close(c.done)
	}
}

// recorder is an agent whose grants are noted.
type recorder struct {
	kubetest.PodAgent
	node string
	all  *agents
}

func (r *recorder) PutGrant(uid string, g api.Grant) (api.Granted, error) {
	answer, err := r.PodAgent.PutGrant(uid, g)
	if err == nil {
		r.all.put(r.node, uid, &g)
	}
	return answer, err
}

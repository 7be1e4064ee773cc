package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/cluster"
	"github.com/tsugiki/tsugiki/kube/connect"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// # Processes of controllers
//
// The bench starts itself again for controllers. Such a process reads an order from its standard input:
// which controllers it runs. Then it answers questions there, one line of JSON each, until its
// standard input ends. Each controller has a connection of its own to the API server, as if it were
// alone in its process.

// controllersArg is the argument of a process of controllers.
const controllersArg = "controllers"

// order says what a process runs.
type order struct {
	Server  string      `json:"server"` // URL of the API server
	CA      string      `json:"ca"`     // file
	Nodes   []nodeOrder `json:"nodes"`
	Cluster string      `json:"cluster,omitempty"` // token; empty: no tsugiki-kube cluster
}

// nodeOrder is a tsugiki-kube node.
type nodeOrder struct {
	Name   string     `json:"name"`
	Token  string     `json:"token"`
	IPv4   netip.Addr `json:"ipv4"`
	Socket string     `json:"socket"` // of the node's agent
}

// Questions to a process.
const (
	askBegin   = "begin" // is askTraffic when a stage begins
	askTraffic = "traffic"
	askMemory  = "memory" // collects garbage first
)

// answer is that of a process, or the sum of several.
type answer struct {
	Nodes   map[string]traffic `json:"nodes,omitempty"` // by node
	Cluster traffic            `json:"cluster"`
	Seconds map[int64]int64    `json:"seconds,omitempty"` // requests of all nodes by the second of Unix time
	Longest map[string]float64 `json:"longest,omitempty"` // seconds until a request had success since a stage began, by verb
	Pause   float64            `json:"pause"`             // the longest that an answer has asked for since then, in seconds
	CPU     time.Duration      `json:"cpu"`               // of the process until now
	RSS     uint64             `json:"rss"`               // resident memory before garbage was collected, in bytes
	Heap    uint64             `json:"heap"`              // objects of askMemory, in bytes
}

// controllers are those of this process.
type controllers struct {
	order  order
	scheme *runtime.Scheme
	log    *slog.Logger
	nodes  map[string]*meter
	whole  *meter // of tsugiki-kube cluster
}

// runControllers runs what the order on in says, and answers questions until in ends.
func runControllers(in io.Reader, out io.Writer) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	c := &controllers{scheme: runtime.NewScheme(), log: log, nodes: map[string]*meter{}, whole: newMeter()}
	questions, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	err := errors.Join(clientgoscheme.AddToScheme(c.scheme), v1alpha1.AddToScheme(c.scheme), questions.Decode(&c.order))
	if err != nil {
		log.Error("begin", "err", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	begin := func(start func(context.Context) error) {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := start(ctx); err == nil {
					return
				} else if ctx.Err() == nil {
					log.Error("a controller has ended and starts again", "err", err)
				}
				select {
				case <-time.After(restartPause):
				case <-ctx.Done():
				}
			}
		})
	}
	for i := range c.order.Nodes {
		o, m := &c.order.Nodes[i], newMeter()
		c.nodes[o.Name] = m
		begin(func(ctx context.Context) error { return c.startNode(ctx, o, m) })
	}
	if c.order.Cluster != "" {
		begin(c.startCluster)
	}
	return c.serve(questions, answers)
}

// restartPause is the kubelet's before it starts a container again that has ended.
const restartPause = 10 * time.Second

// serve answers questions until they end.
func (c *controllers) serve(questions *json.Decoder, answers *json.Encoder) int {
	for {
		var q string
		if questions.Decode(&q) != nil {
			return 0
		}
		a, err := c.answer(q)
		if err == nil {
			err = answers.Encode(a)
		}
		if err != nil {
			c.log.Error("answer", "question", q, "err", err)
			return 1
		}
	}
}

// manager makes a manager as cmd/tsugiki-kube does.
func (c *controllers) manager(token string, m *meter, o ctrl.Options) (ctrl.Manager, error) {
	skip := true
	o.Scheme, o.MapperProvider, o.Metrics = c.scheme, caches.Mapper, server.Options{BindAddress: "0"}
	o.Controller = config.Controller{SkipNameValidation: &skip}
	cfg := &rest.Config{
		Host: c.order.Server, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.order.CA},
		QPS: -1, Dial: m.dial, WrapTransport: m.wrap,
	}
	cfg.Wrap(connect.Singly)
	return ctrl.NewManager(cfg, o)
}

func (c *controllers) startNode(ctx context.Context, o *nodeOrder, meter *meter) error {
	m, err := c.manager(o.Token, meter, ctrl.Options{Cache: node.CacheOptions(o.Name)})
	if err != nil {
		return err
	}
	_, err = node.Add(m, node.Options{
		Node: grant.Node{Name: o.Name, IPv4: o.IPv4}, Classes: []string{class}, Agent: api.Dial(o.Socket), Workers: 4, Log: c.log,
	})
	if err != nil {
		return err
	}
	return m.Start(ctx)
}

func (c *controllers) startCluster(ctx context.Context) error {
	m, err := c.manager(c.order.Cluster, c.whole, ctrl.Options{Cache: cluster.CacheOptions()})
	if err == nil {
		err = cluster.Add(m)
	}
	if err != nil {
		return err
	}
	return m.Start(ctx)
}

func (c *controllers) answer(question string) (a answer, err error) {
	a = answer{Nodes: map[string]traffic{}, Seconds: map[int64]int64{}, Longest: map[string]float64{}, Cluster: c.whole.read()}
	for name, m := range c.nodes {
		a.Nodes[name] = m.read()
		m.eachSecond(a.Seconds)
		a.addWaits(m.waits(question == askBegin))
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return a, err
	}
	a.CPU = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	if a.RSS, err = resident(os.Getpid()); err != nil {
		return a, err
	}
	if question == askMemory {
		debug.FreeOSMemory()
		objects := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(objects)
		a.Heap = objects[0].Value.Uint64()
	}
	return a, nil
}

// resident is the memory of a process, in bytes.
func resident(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	words := strings.Fields(string(text))
	if len(words) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm has %q", pid, text)
	}
	pages, err := strconv.ParseUint(words[1], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}

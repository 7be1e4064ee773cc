package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// # Watches by name
//
// A node watches all endpoints. Instead, it could watch by name those alone that policies of its pods
// name. This figure has clients do both, as client-go does: a list from the API server's cache, and then
// a watch, by a connection for each client. They have the token of a node.

const (
	// needed is how many endpoints a node of this bench needs: one for servers, and one for each of ten namespaces.
	needed = 11
	// changed is how often an endpoint changes in a round.
	changed   = 10
	endpoints = "/apis/tsugiki.dev/v1alpha1/graftendpoints"
)

// ways are the selectors of the lists and watches of a client.
var ways = map[string][]string{"all": {""}, "by name": func() (list []string) {
	for i := range needed {
		list = append(list, "&fieldSelector="+url.QueryEscape("metadata.name="+endpointName(i)))
	}
	return list
}()}

// watcher is a client of the API server.
type watcher struct {
	http     *http.Client
	meter    *meter
	base     string
	token    string
	versions map[string]string // of lists, by selector
	open     []io.Closer       // bodies of watches
}

// newWatcher makes a client with a connection of its own.
func (f *figures) newWatcher(token string) (*watcher, error) {
	c := f.server.Config(token)
	tls, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, err
	}
	m := newMeter()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := c.Dial(ctx, network, addr)
		return meteredConn{conn, m}, err
	}
	t := &http.Transport{TLSClientConfig: tls, DialContext: dial, ForceAttemptHTTP2: true}
	return &watcher{http: &http.Client{Transport: m.wrap(t)}, meter: m, base: c.Host + endpoints, token: token, versions: map[string]string{}}, nil
}

func (w *watcher) get(ctx context.Context, query string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+query, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	resp, err := w.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", query, resp.Status)
	}
	return resp.Body, nil
}

// list lists what selectors select.
func (w *watcher) list(ctx context.Context, selectors []string) error {
	for _, s := range selectors {
		body, err := w.get(ctx, "?resourceVersion=0"+s)
		if err != nil {
			return err
		}
		var list v1alpha1.GraftEndpointList
		err = errors.Join(json.NewDecoder(body).Decode(&list), body.Close())
		if err != nil {
			return err
		}
		w.versions[s] = list.ResourceVersion
	}
	return nil
}

// watch opens the watches.
func (w *watcher) watch(ctx context.Context, selectors []string) error {
	for _, s := range selectors {
		body, err := w.get(ctx, "?watch=true&allowWatchBookmarks=true&timeoutSeconds=3600&resourceVersion="+w.versions[s]+s)
		if err != nil {
			return err
		}
		w.open = append(w.open, body)
		go func() { _, _ = io.Copy(io.Discard, body) }() // until it is closed
	}
	return nil
}

// close closes the watches.
func (w *watcher) close() {
	for _, b := range w.open {
		b.Close()
	}
	w.open = nil
}

// watchesByName compares the ways.
func (f *figures) watchesByName(ctx context.Context) error {
	token, err := kubetest.MakeToken(ctx, f.admin, "tsugiki-kube-node", nodeName(0))
	if err != nil {
		return err
	}
	for range f.o.rounds {
		for way, selectors := range ways {
			if err := f.way(ctx, token, way, selectors); err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
		}
	}
	return nil
}

// usage is what the API server has used.
type usage struct {
	at                  time.Time
	cpu, goroutines, kB float64
}

func (f *figures) usage() (u usage, err error) {
	m, err := f.metrics()
	if err != nil {
		return u, err
	}
	m.Each("process_cpu_seconds_total", func(_ map[string]string, value, _ float64) { u.cpu = value })
	m.Each("go_goroutines", func(_ map[string]string, value, _ float64) { u.goroutines = value })
	rss, err := resident(f.server.Server.PID())
	u.at, u.kB = time.Now(), float64(rss)/1024
	return u, err
}

// spent adds the CPU time for each client that the API server takes for something, beside what it takes at rest.
func (f *figures) spent(what, way string, rest float64, do func() error) error {
	before, err := f.usage()
	if err == nil {
		err = do()
	}
	if err != nil {
		return err
	}
	after, err := f.usage()
	if err != nil {
		return err
	}
	cpu := after.cpu - before.cpu - rest*after.at.Sub(before.at).Seconds()
	clients := float64(f.o.nodes)
	f.report.Add(measure.Metric{Test: what, Name: "CPU time of kube-apiserver for a client", Unit: "ms"}, way, cpu/clients*1000)
	f.report.Add(measure.Metric{Test: what, Name: "resident memory of kube-apiserver, more for a client", Unit: "KiB"}, way, (after.kB-before.kB)/clients)
	f.report.Add(measure.Metric{Test: what, Name: "goroutines of kube-apiserver, more for a client"}, way, (after.goroutines-before.goroutines)/clients)
	return nil
}

// way measures one way.
func (f *figures) way(ctx context.Context, token, way string, selectors []string) error {
	clients := make([]*watcher, f.o.nodes)
	for i := range clients {
		w, err := f.newWatcher(token)
		if err != nil {
			return err
		}
		clients[i] = w
		defer w.http.CloseIdleConnections()
		defer w.close()
	}
	all := func(do func(context.Context, *watcher) error) func() error {
		return func() error {
			return each(ctx, len(clients), func(_ context.Context, i int) error { return do(ctx, clients[i]) })
		}
	}
	before, err := f.usage()
	if err != nil {
		return err
	}
	select {
	case <-time.After(f.o.idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := f.usage()
	if err != nil {
		return err
	}
	rest := (after.cpu - before.cpu) / after.at.Sub(before.at).Seconds()
	list := all(func(ctx context.Context, w *watcher) error { return w.list(ctx, selectors) })
	watch := all(func(ctx context.Context, w *watcher) error { return w.watch(ctx, selectors) })
	end := all(func(_ context.Context, w *watcher) error {
		w.close()
		return nil
	})
	return errors.Join(
		f.spent("connections and lists", way, rest, list),
		f.spent("watches", way, rest, watch),
		f.spent("watches end, and begin anew", way, rest, func() error { return errors.Join(end(), watch()) }),
		f.spent(fmt.Sprintf("%d changes of an endpoint that no client needs", changed), way, rest, func() error {
			return f.changeEndpoint(ctx, clients, endpointName(f.o.endpoints-1), way == "all")
		}),
		f.spent(fmt.Sprintf("%d changes of an endpoint that all clients need", changed), way, rest, func() error {
			return f.changeEndpoint(ctx, clients, endpointName(needed-1), true)
		}),
	)
}

// changeEndpoint changes an endpoint some times, and waits for its status, and until all clients have
// heard of it, if they do.
func (f *figures) changeEndpoint(ctx context.Context, clients []*watcher, name string, heard bool) error {
	lines := func(w *watcher) int64 { return w.meter.read().Calls[watchVerb+" graftendpoints"].Lines }
	before := make([]int64, len(clients))
	for i, w := range clients {
		before[i] = lines(w)
	}
	e := &v1alpha1.GraftEndpoint{}
	e.Name = name
	for range changed {
		f.round = (f.round + 1) % 256
		if err := f.patch(ctx, e, fmt.Sprintf(`{"spec": {"destinations": [{"cidr": %q}]}}`, destination(f.round))); err != nil {
			return err
		}
		err := poll(ctx, func() error {
			err := f.admin.Get(ctx, client.ObjectKeyFromObject(e), e)
			if err == nil && (len(e.Status.Conditions) != 1 || e.Status.Conditions[0].ObservedGeneration != e.Generation) {
				err = errors.New("the status is of an earlier generation")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return poll(ctx, func() error {
		for i, w := range clients {
			if n := lines(w) - before[i]; heard && n < 2*changed { // the specification, and the status
				return fmt.Errorf("a client has heard of %d changes, want %d", n, 2*changed)
			}
		}
		return nil
	})
}

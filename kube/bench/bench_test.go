package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/bench/measure"
)

// TestMain has the bench start the test again for controllers.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == controllersArg {
		os.Exit(runControllers(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// TestFleet measures a few nodes. After the first lists there is none, and all nodes follow all
// changes, with the permissions of deploy/.
func TestFleet(t *testing.T) {
	o, err := parse(strings.Fields("-nodes 3 -pods 12 -namespaces 2 -endpoints 20 -per-process 2 -rounds 2 -idle 100ms -down 100ms"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	report, err := bench(t.Context(), t, o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Notes) > 0 {
		t.Fatalf("the bench notes %q", report.Notes)
	}
	watches := valuesOf(report, "install", "watches of a node", "")
	if len(watches) != 1 || watches[0] < 4 {
		t.Fatalf("a node has %v watches, want pods, policies, endpoints and namespaces", watches)
	}
	for _, want := range []struct {
		test, metric, mode string
		value              float64 // of requests and events at the beginning at least that many: some are tried again
	}{
		{"install", "nodes that put grants", "", 3},
		{"install", "lists of all nodes", "", 3 * watches[0]},
		{"install", "requests of all nodes", "UPDATE pods/status", 12},
		{"install", "events sent to all watches", "endpointslices", 12},
		{"idle", "lists of all nodes", "", 0},
		{"policy changed", "nodes that put grants", "", 3},
		{"policy changed", "lists of all nodes", "", 0},
		{"unused endpoint changed", "lists of all nodes", "", 0},
		{"endpoint withdrawn", "nodes that put grants", "", 3},
		{"endpoint withdrawn", "lists of all nodes", "", 0},
		{"endpoint given back", "lists of all nodes", "", 0},
		{"policy changed after that", "nodes that put grants", "", 3},
		{"nodes restarted", "nodes that put grants", "", 3},
		{"nodes restarted", "lists of all nodes", "", 3 * watches[0]},
	} {
		values := valuesOf(report, want.test, want.metric, want.mode)
		if len(values) == 0 {
			t.Errorf("%s: there is no figure %s %s", want.test, want.metric, want.mode)
		}
		for _, v := range values {
			tried := strings.Contains(want.metric, " all ") && want.value > 0
			if v < want.value || v > want.value && !tried {
				t.Errorf("%s: %s %s is %v, want %v", want.test, want.metric, want.mode, v, want.value)
			}
		}
	}
	for _, what := range []string{"CREATE", "UPDATE", "PATCH", "DELETE"} {
		for _, resource := range []string{"pods/status", "endpointslices"} {
			if n := valuesOf(report, "nodes restarted", "requests of all nodes", what+" "+resource); len(n) > 0 {
				t.Errorf("nodes that were restarted in an unchanged cluster wrote: %s %s %v", what, resource, n)
			}
		}
	}
	var out bytes.Buffer
	if err := writeTable(report, &out); err != nil || !strings.Contains(out.String(), "last grant of a node put") {
		t.Errorf("the table is\n%s\n%v", out.String(), err)
	}
}

// TestWatchesByName compares watches of all endpoints with watches by name, of a few clients.
func TestWatchesByName(t *testing.T) {
	o, err := parse(strings.Fields("-only watches -nodes 3 -pods 30 -endpoints 20 -rounds 1 -idle 100ms"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	report, err := bench(t.Context(), t, o, io.Discard)
	if err != nil || len(report.Notes) > 0 {
		t.Fatalf("%v, notes %q", err, report.Notes)
	}
	more := map[string]float64{}
	for way := range ways {
		values := valuesOf(report, "watches", "goroutines of kube-apiserver, more for a client", way)
		if len(values) != 1 {
			t.Fatalf("%s: goroutines %v, want one value", way, values)
		}
		more[way] = values[0]
	}
	if more["by name"] <= more["all"] {
		t.Errorf("the API server has %v goroutines more for watches by name, and %v for one of all", more["by name"], more["all"])
	}
}

func valuesOf(r *measure.Report, test, metric, mode string) []float64 {
	for _, res := range r.Results {
		if res.Test == test && res.Metric == metric && res.Mode == mode {
			return res.Values
		}
	}
	return nil
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-nodes 0":              "want 1 to 5000 nodes",
		"-nodes 3 -pods 100":    "want a multiple of 30",
		"-endpoints 11":         "want 12 or more",
		"-rounds 0":             "want 1 to 99 rounds",
		"-agent bin/tsugiki":    "-agent is for one node",
		"-no-such-flag":         "not defined",
		"1000":                  `unexpected argument "1000"`,
		"-down 0s -idle 1m":     "positive durations",
		"-per-process 0":        "nodes of a process",
		"-namespaces 0 -pods 1": "namespaces",
		"-only nodes":           `-only "nodes"`,
	} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(args), &stdout, &stderr); code != 2 {
			t.Errorf("%s: exit status %d, want 2", args, code)
		}
		if !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: said %q, want one line with %q", args, stderr.String(), want)
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, tt := range []struct{ method, url, want string }{
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0&watch=true", "WATCH pods"},
		{"GET", "/apis/tsugiki.dev/v1alpha1/graftendpoints?sendInitialEvents=true&watch=true", "WATCHLIST graftendpoints"},
		{"GET", "/apis/tsugiki.dev/v1alpha1/graftendpoints?limit=500", "LIST graftendpoints"},
		{"GET", "/api/v1/namespaces?watch=true", "WATCH namespaces"},
		{"GET", "/api/v1/namespaces/shop", "GET namespaces"},
		{"GET", "/api/v1/namespaces/shop/pods/p1", "GET pods"},
		{"PATCH", "/api/v1/namespaces/shop/pods/p1/status", "PATCH pods/status"},
		{"POST", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", "CREATE endpointslices"},
		{"PUT", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/s", "UPDATE endpointslices"},
		{"DELETE", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/s", "DELETE endpointslices"},
		{"GET", "/apis/tsugiki.dev/v1alpha1", "GET discovery"},
		{"GET", "/api", "GET discovery"},
	} {
		if got := kindOf(httptest.NewRequest(tt.method, tt.url, nil)); got != tt.want {
			t.Errorf("%s %s is %q, want %q", tt.method, tt.url, got, tt.want)
		}
	}
}

// A meter counts bytes at the connection, answers by kind, and the watches that are open.
func TestMeter(t *testing.T) {
	more := make(chan string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/nodes" {
			http.Error(w, "wait", http.StatusTooManyRequests)
			return
		}
		for line := range more {
			fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer s.Close()
	m := newMeter()
	c := http.Client{Transport: m.wrap(&http.Transport{DialContext: m.dial})}
	r, err := c.Get(s.URL + "/api/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	go func() {
		more <- "12345"
		more <- "1234"
	}()
	if r, err = c.Get(s.URL + "/api/v1/pods?watch=true"); err != nil {
		t.Fatal(err)
	}
	if n := m.read().Watches; n != 1 {
		t.Errorf("%d watches are open, want 1", n)
	}
	lines := json.NewDecoder(r.Body)
	for _, want := range []int{12345, 1234} {
		var got int
		if err := lines.Decode(&got); err != nil || got != want {
			t.Fatalf("read %d, %v, want %d", got, err, want)
		}
	}
	close(more)
	if _, err := io.ReadAll(r.Body); err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	got := m.read()
	if got.Watches != 0 || got.In < 11 || got.Out == 0 {
		t.Errorf("counted %+v", got)
	}
	if got.Calls["WATCH pods"] != (calls{Requests: 1, Bytes: 11, Lines: 2}) || got.Calls["LIST nodes"] != (calls{Requests: 1, Throttled: 1}) {
		t.Errorf("counted %+v", got.Calls)
	}
}

func TestPercentile(t *testing.T) {
	var values []float64
	for i := range 1000 {
		values = append(values, float64(i+1))
	}
	for hundredths, want := range map[int]float64{50: 500, 99: 990, 100: 1000} {
		if got := percentile(values, hundredths); got != want {
			t.Errorf("%d hundredths of 1 to 1000: %v, want %v", hundredths, got, want)
		}
	}
	if got := percentile([]float64{7}, 50); got != 7 {
		t.Errorf("of one value it is %v, want that", got)
	}
}

package figures

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/tsugiki/tsugiki/density/load"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

const (
	studyWeb       = 128
	studyWebRandom = 300
	webRequests    = 1000  // of each container's client, as in the study
	webTotal       = 16000 // largest sum of all clients' requests
	randomRequests = 10000 // of the client outside
	webPort        = 80
	// firstHostPort is the port of the first container in the host's network, where the containers
	// share the ports. It is below the ports that the kernel gives to clients.
	firstHostPort = 10000
	page          = "<!doctype html><title>density</title><p>A small page, as a server's own start page is.\n"
)

// nginxConfig is the configuration for one port, with a master and a worker, as distributions have
// it.
const nginxConfig = `user nobody nogroup;
worker_processes 1;
pid /run/nginx.pid;
events { worker_connections 128; }
http {
	access_log off;
	client_body_temp_path /tmp/body;
	proxy_temp_path /tmp/proxy;
	fastcgi_temp_path /tmp/fastcgi;
	uwsgi_temp_path /tmp/uwsgi;
	scgi_temp_path /tmp/scgi;
	server { listen 0.0.0.0:%d; root /www; }
}
`

// webServer is the web server in the containers.
type webServer struct{ nginx bool }

func findServer() webServer {
	_, err := exec.LookPath("nginx")
	return webServer{nginx: err == nil}
}

func (s webServer) args(port uint16) []string {
	if s.nginx {
		return []string{"nginx", "-e", "stderr", "-c", configFile(port), "-g", "daemon off;"}
	}
	return []string{"httpd", "-f", "-p", strconv.Itoa(int(port)), "-h", "/www"}
}

func (s webServer) note() string {
	if s.nginx {
		return "Server: nginx, one worker, no access log."
	}
	return "Server: busybox httpd, for there is no nginx on this machine (Debian package nginx-light)."
}

func (s webServer) addVersion(tools map[string]string) {
	if s.nginx {
		addVersion(tools, "web server", "nginx", "-v")
	} else {
		addVersion(tools, "web server", "busybox")
	}
}

func configFile(port uint16) string { return fmt.Sprintf("/etc/nginx/%d.conf", port) }

// portOf returns the port of container i.
func portOf(v variant, i int) uint16 {
	if v.network == rig.Host {
		return uint16(firstHostPort + i)
	}
	return webPort
}

// prepare installs the server and its files for a number of containers.
func (s webServer) prepare(loader string, list []variant, n int) func(context.Context, *rig.Rig) error {
	return func(_ context.Context, r *rig.Rig) error {
		programs := []string{loader}
		for _, c := range webClients() {
			if c.program != "" {
				programs = append(programs, c.program)
			}
		}
		if err := errors.Join(r.Install(programs...), r.Put("/www/index.html", []byte(page), 0o644)); err != nil || !s.nginx {
			return err
		}
		if err := r.Install("nginx"); err != nil {
			return err
		}
		ports := []uint16{webPort}
		for i := range n {
			if has(list, rig.Host) {
				ports = append(ports, uint16(firstHostPort+i))
			}
		}
		for _, port := range ports {
			if err := r.Put(configFile(port), fmt.Appendf(nil, nginxConfig, port), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
}

func planServers(o *sweep.Options, study int) (*sweep.Plan, []variant, webServer, error) {
	server := findServer()
	loader, err := findLoad()
	if err != nil {
		return nil, nil, server, err
	}
	list, n := variants(o, []string{rig.Bridge, rig.Graft}, []string{rig.Overlay}), largest(o, study)
	tools, err := networkTools(list)
	if err != nil {
		return nil, nil, server, err
	}
	server.addVersion(tools)
	addVersion(tools, "web client", load.AB, "-V")
	p := &sweep.Plan{Rounds: rounds(o), Containers: n, Tools: tools, Room: rig.Room{Memory: 12 << 20, Processes: 6, Connections: 1}}
	p.Network, p.Storage = most(list)
	p.Prepare = server.prepare(loader, list, n)
	return p, list, server, nil
}

func planWeb(o *sweep.Options) (*sweep.Plan, error) {
	p, list, server, err := planServers(o, studyWeb)
	if err != nil {
		return nil, err
	}
	requests := webRequests
	if o.Quick {
		requests /= 10
	}
	p.Figure = &result.Figure{
		Title: "Web servers, each asked from inside its container at once",
		Study: "Each container's response time got worse as containers were added, the total throughput little.",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "throughput", Unit: "requests/s", Log: true, Better: result.Higher},
		Notes: []string{
			server.note(),
			fmt.Sprintf("%d requests in each container, or fewer where all would make more than %d (the study made %d in each), one after the other, "+
				"each on a new connection, from the container to itself. All begin at the same time.", requests, webTotal, webRequests),
			"The client is ApacheBench, as in the study. After it, the same is measured with a client that is linked statically.",
			grownNote,
			"Percentiles are of the single requests of all containers, in milliseconds.",
		},
	}
	clients := webClients()
	for _, c := range clients {
		order(p.Figure, list, "total"+c.series, "each"+c.series)
	}
	for _, v := range list {
		measure := func(ctx context.Context, _ *sweep.Env, c *crowd) (samples []sweep.Sample, err error) {
			for _, client := range clients {
				more, err := askInside(ctx, o.Seed, c, v, client, min(requests, max(1, webTotal/len(c.members))))
				if err != nil {
					return samples, err
				}
				samples = append(samples, more...)
			}
			return samples, nil
		}
		p.Steps = append(p.Steps, server.step(v, doubling(p.Containers), len(clients)*min(requests*p.Containers, webTotal), measure))
	}
	return p, nil
}

// webClient is a client that containers run.
type webClient struct {
	series  string // what is added to the names of its series
	program string // what else is installed for it, "" if nothing
	command func(requests int, seed uint64, server string) []string
	parse   func(out []byte) (load.WebResult, error)
}

// webClients are ApacheBench, if it is on this machine, and tsugiki-load, which is linked statically.
func webClients() (list []webClient) {
	if _, err := exec.LookPath(load.AB); err == nil {
		command := func(requests int, _ uint64, server string) []string { return load.ABCommand(requests, server) }
		list = append(list, webClient{"", load.AB, command, load.ParseAB})
	}
	command := func(requests int, seed uint64, server string) []string {
		return inside(load.Web(requests, seed, server))
	}
	return append(list, webClient{", static client", "", command, load.ParseWeb})
}

// grownNote explains how the number of servers grows.
const grownNote = "In each round, a network's containers are started until there are as many as the first point has, asked, then more are started for the next."

// step returns a step that makes requests to the servers at each size.
func (s webServer) step(v variant, sizes []int, requests int, ask func(ctx context.Context, e *sweep.Env, c *crowd) ([]sweep.Sample, error)) sweep.Step {
	run := func(ctx context.Context, e *sweep.Env) (samples []sweep.Sample, err error) {
		c, err := s.serve(ctx, e, v)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.disperse(ctx)) }()
		for _, n := range sizes {
			if err := c.grow(ctx, n); err != nil {
				return samples, err
			}
			more, err := ask(ctx, e, c)
			if err != nil {
				return samples, fmt.Errorf("%d containers: %w", n, err)
			}
			samples = append(samples, more...)
		}
		return samples, nil
	}
	most := sizes[len(sizes)-1]
	return sweep.Step{Key: v.key(most), Seconds: 1 + 2*seconds(most) + float64(len(sizes)*requests)/3000, Run: run}
}

// serve prepares the servers without starting them.
func (s webServer) serve(ctx context.Context, e *sweep.Env, v variant) (*crowd, error) {
	return gather(ctx, e, 0, func(i int) rig.Spec {
		port := portOf(v, i)
		spec := v.spec(i, s.args(port)...)
		spec.Ports = []uint16{port}
		return spec
	})
}

// askInside makes each container send requests to its own server.
func askInside(ctx context.Context, seed uint64, c *crowd, v variant, client webClient, requests int) ([]sweep.Sample, error) {
	out, extra, err := c.together(ctx, c.runners(), func(i int) []string {
		return client.command(requests, seed+uint64(i), fmt.Sprintf("127.0.0.1:%d", portOf(v, i)))
	})
	if err != nil {
		return nil, err
	}
	var rates, took []float64
	longest := 0.0
	for i, o := range out {
		r, err := answered(client.parse(o))
		if err != nil {
			return nil, fmt.Errorf("container %d: %w", i, err)
		}
		rates, took = append(rates, float64(len(r.Took))/r.Seconds), append(took, r.Took...)
		longest = max(longest, r.Seconds)
	}
	merge(extra, percentiles(took))
	x := float64(len(c.members))
	return []sweep.Sample{
		// The time ends with the last container. Some containers run alone at the end.
		{Series: "total" + client.series, Labels: v.labels, X: x, Value: float64(len(took)) / longest, Each: rates, Extra: extra},
		{Series: "each" + client.series, Labels: v.labels, X: x, Value: mean(rates)},
	}, nil
}

// answered checks a client's result. A failed request is an error: refused requests would make the
// others look fast.
func answered(r load.WebResult, err error) (load.WebResult, error) {
	if err == nil && r.Failed > 0 {
		err = fmt.Errorf("%d of %d requests failed", r.Failed, r.Failed+len(r.Took))
	}
	return r, err
}

func planWebRandom(o *sweep.Options) (*sweep.Plan, error) {
	p, list, server, err := planServers(o, studyWebRandom)
	if err != nil {
		return nil, err
	}
	if has(list, rig.None) {
		return nil, errUnreachable
	}
	requests := randomRequests
	if o.Quick {
		requests /= 10
	}
	p.Figure = &result.Figure{
		Title: "Web servers drawn at random, asked from outside",
		Study: "Up to 128 containers there was no great loss; from 256 on it got worse.",
		X:     result.Axis{Label: "containers", Log: true},
		Y:     result.Axis{Label: "mean response time", Unit: "ms", Better: result.Lower},
		Notes: []string{
			server.note(),
			fmt.Sprintf("%d requests from another network namespace, one after the other, each on a new connection to a server drawn at random.", requests),
			grownNote,
			"Percentiles are of the single requests, in milliseconds.",
		},
	}
	order(p.Figure, list, "response")
	p.Room.Connections = requests/p.Containers + 1
	loader, err := findLoad()
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		measure := func(ctx context.Context, e *sweep.Env, c *crowd) ([]sweep.Sample, error) {
			return askOutside(ctx, e, loader, o.Seed, c, v, requests)
		}
		p.Steps = append(p.Steps, server.step(v, doubling(p.Containers), requests, measure))
	}
	return p, nil
}

// askOutside makes the remote side send requests to random containers.
func askOutside(ctx context.Context, e *sweep.Env, loader string, seed uint64, c *crowd, v variant, requests int) ([]sweep.Sample, error) {
	var servers []string
	for i, m := range c.members {
		servers = append(servers, m.Address(portOf(v, i)))
	}
	before, err := c.watch()
	if err != nil {
		return nil, err
	}
	out, err := e.Rig.Outside(ctx, append([]string{loader}, load.Web(requests, seed+uint64(e.Round), servers...)...)...)
	if err != nil {
		return nil, err
	}
	after, err := c.watch()
	if err != nil {
		return nil, err
	}
	r, err := answered(load.ParseWeb(out))
	if err != nil {
		return nil, err
	}
	extra := after.since(before)
	extra["requests_per_s"] = float64(len(r.Took)) / r.Seconds
	return []sweep.Sample{{Series: "response", Labels: v.labels, X: float64(len(servers)), Value: mean(r.Took), Events: r.Took, Extra: extra}}, nil
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	webFirstPort = 8080
	// connections that one curl makes, one after the other.
	connections = 2000
)

// nginxConfig makes nginx run in the foreground, with everything it writes in
// its prefix. One process is all it needs here, and nothing of it is left when
// the demo is killed. The blocks for the ports follow.
const nginxConfig = `daemon off;
master_process off;
pid nginx.pid;
error_log error.log;
events {}
http {
	log_format time '$msec';
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
%s}
`

// Each mode has a port of its own, so that connections that another mode left
// in TIME_WAIT are not met.
const nginxServer = `	server {
		listen %s:%d;
		access_log %d.log time;
		location / { return 200 "graft\n"; }
	}
`

// web is one curl that fetches from nginx, on a new connection each time. The
// rate is what nginx logs between the first and the last request, so that the
// time that curl takes to start is not in it.
func web(r *modes.Runner, dir string, list []modes.Mode) modes.Load {
	ports := make(map[modes.Mode]uint16)
	for i, mode := range list {
		ports[mode] = webFirstPort + uint16(i)
	}
	start := func(ctx context.Context) error {
		var servers strings.Builder
		var list []uint16
		for _, port := range ports {
			fmt.Fprintf(&servers, nginxServer, testkit.RemoteAddr4, port, port)
			list = append(list, port)
		}
		config := filepath.Join(dir, "nginx.conf")
		if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, servers.String()), 0o600); err != nil {
			return fmt.Errorf("configure nginx: %w", err)
		}
		_, err := r.Serve(ctx, modes.Host, "tcp", list, "nginx", "-p", dir, "-c", config)
		return err
	}
	run := func(ctx context.Context, mode modes.Mode, add func(measure.Metric, float64)) error {
		log := filepath.Join(dir, strconv.Itoa(int(ports[mode]))+".log")
		if err := os.Truncate(log, 0); err != nil {
			return fmt.Errorf("empty log of nginx: %w", err)
		}
		url := fmt.Sprintf("http://%s:%d/[1-%d]", testkit.RemoteAddr4, ports[mode], connections)
		_, err := r.Run(ctx, mode, "curl", "--disable", "--silent", "--show-error", "--fail", "--noproxy", "*",
			"--header", "Connection: close", "--output", "/dev/null", url)
		if err != nil {
			return err
		}
		rate, err := logRate(ctx, log)
		if err != nil {
			return err
		}
		add(measure.Metric{Name: "new connections", Unit: "1/s", HigherIsBetter: true}, rate)
		return nil
	}
	return modes.Load{Name: "curl/nginx", Pin: modes.Anywhere, Start: start, Run: run}
}

// logRate waits until all requests are logged, which may be some time after curl
// has its answers, and returns how many there were per second.
func logRate(ctx context.Context, path string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for {
		data, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("read log of nginx: %w", err)
		}
		n := bytes.Count(data, []byte("\n"))
		if n >= connections {
			return parseLog(data)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("read log of nginx: %d of %d requests (%w)", n, connections, ctx.Err())
		}
	}
}

// parseLog reads one time per line, in seconds.
func parseLog(data []byte) (rate float64, err error) {
	lines := bytes.Fields(data)
	if len(lines) < 2 {
		return 0, fmt.Errorf("read log of nginx: %d requests", len(lines))
	}
	first, err := strconv.ParseFloat(string(lines[0]), 64)
	if err != nil {
		return 0, fmt.Errorf("read log of nginx: %w", err)
	}
	last, err := strconv.ParseFloat(string(lines[len(lines)-1]), 64)
	if err != nil {
		return 0, fmt.Errorf("read log of nginx: %w", err)
	}
	if last <= first {
		return 0, fmt.Errorf("read log of nginx: times do not advance")
	}
	return float64(len(lines)-1) / (last - first), nil
}

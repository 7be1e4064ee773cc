package dpuagent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/card"
	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// right is a configuration without faults.
func right() Config {
	return Config{
		Endpoint: "unix:/run/dpu", RunDir: "/run/openvswitch", Datapath: "netdev", Uplink: "p0", Card: card.Emulated{},
		Address: netip.MustParsePrefix("192.0.2.1/24"), Gateway: netip.MustParseAddr("192.0.2.254"), Masquerade: netip.MustParseAddr("192.0.2.101"),
	}
}

func TestConfiguration(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                        func(*Config) {},
		"write netdev or system":  func(c *Config) { c.Datapath = "dpdk" },
		"unix:/FOLDER":            func(c *Config) { c.Endpoint = "x" },
		"--client":                func(c *Config) { c.Endpoint = "tls:192.0.2.1:1" },
		"--uplink":                func(c *Config) { c.Uplink = "" },
		"--address is missing":    func(c *Config) { c.Address = netip.Prefix{} },
		"belong together":         func(c *Config) { c.Gateway = netip.Addr{} },
		"of the uplink's network": func(c *Config) { c.Gateway = netip.MustParseAddr("203.0.113.1") },
		"three addresses":         func(c *Config) { c.Masquerade = c.Address.Addr() },
	} {
		c := right()
		change(&c)
		err := c.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	without := right()
	without.Masquerade, without.Gateway = netip.Addr{}, netip.Addr{}
	if err := without.Check(); err != nil {
		t.Errorf("without an outside: %v", err)
	}
}

// A process id that is none, or that of a process that has ended, is no ovs-vswitchd; the same process
// has the same generation.
func TestFindVswitchd(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "ovs-vswitchd.pid"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := findVswitchd(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "--ovs-run-dir") {
		t.Errorf("no folder: %v", err)
	}
	if _, err := findVswitchd(dir); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("no file: %v", err)
	}
	for _, text := range []string{"", "x", "-1", "0", "999999999"} {
		write(text)
		if v, err := findVswitchd(dir); err == nil {
			t.Errorf("%q is %+v", text, v)
		}
	}
	write(fmt.Sprintln(os.Getpid()))
	one, err := findVswitchd(dir)
	again, err2 := findVswitchd(dir)
	write(fmt.Sprintln(os.Getppid()))
	other, err3 := findVswitchd(dir)
	if err := errors.Join(err, err2, err3); err != nil || one != again || one.generation == other.generation || one.generation == "" {
		t.Errorf("%+v, %+v, %+v, %v", one, again, other, err)
	}
}

// serving is an agent's server with sockets of a switch behind it that send back what they get.
func serving(t *testing.T) (*Agent, *dpu.Host) {
	t.Helper()
	testkit.CheckLeaks(t)
	dir, err := os.MkdirTemp("", "dpu") // a short path: its sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, s := range []dpu.Service{dpu.OVSDB, dpu.OpenFlow} {
		l, err := net.Listen("unix", filepath.Join(dir, s.SocketName()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					fmt.Fprintf(c, "%s\n", s)
					_, _ = io.Copy(c, c)
				}()
			}
		}()
	}
	c := right()
	c.RunDir, c.Endpoint = dir, "unix:"+dir+"/host"
	a := &Agent{Config: c, log: slog.New(slog.DiscardHandler), board: newBoard()}
	a.board.put(dpu.Health{Fault: "it starts"})
	stop, err := a.serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	host, err := dpu.NewHost(c.Endpoint, "")
	if err != nil {
		t.Fatal(err)
	}
	return a, host
}

// Each service leads to its socket, in both directions. News of health arrive at once; more connections
// than there may be wait until others have ended, and do not keep other services waiting.
func TestServe(t *testing.T) {
	a, host := serving(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	open := func(s dpu.Service) (net.Conn, string) {
		t.Helper()
		c, err := host.Dial(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReaderSize(c, 16).ReadString('\n')
		return c, strings.TrimSpace(line)
	}
	for _, s := range []dpu.Service{dpu.OVSDB, dpu.OpenFlow} {
		c, got := open(s)
		if got != string(s) {
			t.Errorf("%s leads to %q", s, got)
		}
		if _, err := c.Write([]byte("abc")); err != nil {
			t.Error(err)
		}
		back := make([]byte, 3)
		if _, err := io.ReadFull(c, back); err != nil || string(back) != "abc" {
			t.Errorf("%s sends back %q, %v", s, back, err)
		}
		c.Close()
	}
	r, err := host.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if h, err := r.Next(); err != nil || h.Fault != "it starts" {
		t.Errorf("%+v, %v", h, err)
	}
	a.board.put(dpu.Health{Generation: "1"})
	for {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Generation == "1" && h.Fault == "" {
			break
		}
	}
	var held []net.Conn
	for range connectionsMax {
		c, got := open(dpu.OpenFlow)
		if got != string(dpu.OpenFlow) {
			t.Fatalf("connection %d gets %q", len(held), got)
		}
		held = append(held, c)
	}
	late, err := host.Dial(ctx, dpu.OpenFlow)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if c, got := open(dpu.OVSDB); got != string(dpu.OVSDB) {
		t.Errorf("the other service gets %q", got)
	} else {
		c.Close()
	}
	line := make([]byte, len(dpu.OpenFlow)+1)
	if err := late.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := late.Read(line); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many gets %q, %v", line[:n], err)
	}
	for _, c := range held {
		c.Close()
	}
	if err := late.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(late, line); err != nil || string(line) != string(dpu.OpenFlow)+"\n" {
		t.Errorf("the connection that waited gets %q, %v", line, err)
	}
}

// What is told of one's health is one line, whatever the fault is.
func TestBoard(t *testing.T) {
	b := newBoard()
	b.put(dpu.Health{Fault: "two\nlines"})
	line, changed := b.line()
	if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || !json.Valid([]byte(line)) {
		t.Errorf("%q", line)
	}
	b.put(dpu.Health{Fault: "two\nlines"})
	select {
	case <-changed:
		t.Error("the same health is news")
	default:
	}
	b.put(dpu.Health{})
	<-changed
}

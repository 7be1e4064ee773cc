package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Ports of the servers on the remote. One answers HTTP requests with the client's address, the other sends
// datagrams back.
const (
	webPort  = 8080
	echoPort = 7
)

// pythonClient knows IPv4 only. It prints what the system calls tell it.
// usage: python3 -c CLIENT NAME WEB-PORT ECHO-PORT
const pythonClient = `
import socket, sys
name, web, echo = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("gethostbyname", socket.gethostbyname(name))
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.connect((name, web))
print("SO_DOMAIN", socket.AddressFamily(s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)).name)
print("getsockname", s.getsockname()[0])
print("getpeername", "%s:%d" % s.getpeername())
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(60)
u.sendto(b"hello", (name, echo))
print("recvfrom", "%s:%d" % u.recvfrom(100)[1])
`

// views are what programs see, and what is on the host's link meanwhile.
type views struct {
	programs []string
	link     *count
}

// look runs the programs in the first translated mode.
func look(ctx context.Context, r *modes.Runner) (*views, error) {
	if err := testkit.Programs("curl", "python3"); err != nil {
		return nil, err
	}
	mode := slices.IndexFunc(r.Modes(), func(m modes.Mode) bool { return m == modes.Translated || m == modes.TranslatedSeccomp })
	if mode < 0 {
		return nil, fmt.Errorf("no mode %s or %s", modes.Translated, modes.TranslatedSeccomp)
	}
	end, err := serve(r.Top.Remote)
	if err != nil {
		return nil, err
	}
	defer end()
	capture, err := newCapture(r.Top.Host)
	if err != nil {
		return nil, err
	}
	defer capture.Close()

	url := fmt.Sprintf("http://%s:%d/", modes.ServerName, webPort)
	v := &views{}
	for _, p := range []struct {
		title string
		argv  []string
	}{
		{
			"curl -4 " + url,
			[]string{
				"curl", "--disable", "-4", "--silent", "--show-error", "--noproxy", "*",
				"--write-out", "local %{local_ip}\nremote %{remote_ip}:%{remote_port}\n", url,
			},
		},
		{
			"python3, AF_INET",
			[]string{"python3", "-c", pythonClient, modes.ServerName, strconv.Itoa(webPort), strconv.Itoa(echoPort)},
		},
	} {
		run, err := r.Run(ctx, r.Modes()[mode], p.argv...)
		if err != nil {
			return nil, err
		}
		v.programs = append(v.programs, p.title)
		for line := range strings.Lines(string(run.Stdout)) {
			v.programs = append(v.programs, "  "+strings.TrimSpace(line))
		}
	}
	v.link, err = capture.end()
	return v, err
}

// serve starts the servers, and returns what ends them.
func serve(remote *testkit.Namespace) (end func(), err error) {
	var web net.Listener
	var echo net.PacketConn
	at := func(port uint16) string { return netip.AddrPortFrom(testkit.RemoteAddr6, port).String() }
	err = remote.Do(func() (err error) {
		if web, err = net.Listen("tcp6", at(webPort)); err != nil {
			return err
		}
		if echo, err = net.ListenPacket("udp6", at(echoPort)); err != nil {
			web.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start servers on the remote: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "hello %s\n", client)
	})}
	go func() { _ = server.Serve(web) }() // until it is closed
	go func() {
		packet := make([]byte, 2048)
		for {
			n, from, err := echo.ReadFrom(packet)
			if err != nil {
				return // it was closed
			}
			_, _ = echo.WriteTo(packet[:n], from) // as a network may lose it
		}
	}()
	return func() {
		server.Close()
		echo.Close()
	}, nil
}

// write writes both views side by side.
func (v *views) write(w io.Writer) error {
	link := v.link.lines()
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprint(t, "\nWHAT THE PROGRAMS SEE\tWHAT IS ON THE HOST'S LINKS\n\t\n")
	for i := range max(len(v.programs), len(link)) {
		fmt.Fprintf(t, "%s\t%s\n", at(v.programs, i), at(link, i))
	}
	return t.Flush()
}

// at is line i, or nothing.
func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

package dpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestEndpoints(t *testing.T) {
	for text, want := range map[string]string{
		"unix:/run/dpu": "/run/dpu", "tls:192.0.2.1:9": "192.0.2.1:9", "tls:[2001:db8::1]:9": "[2001:db8::1]:9", "tls:dpu1:9471": "dpu1:9471",
		"": "", "unix:": "", "unix:x": "", "unix:/a/../b": "", "tls:": "", "tls:host": "", "tls::9": "", "tls:host:": "", "tcp:host:9": "", "/run/dpu": "",
	} {
		e, err := ParseEndpoint(text)
		if (err == nil) != (want != "") || e.address != want {
			t.Errorf("%q: %+v, %v", text, e, err)
		}
		if err == nil && (e.String() != text || e.TLS() != strings.HasPrefix(text, "tls:")) {
			t.Errorf("%q is %v", text, e)
		}
	}
}

// serve answers health on a unix endpoint.
func serve(t *testing.T, dir, lines string) *Host {
	t.Helper()
	e, err := ParseEndpoint("unix:" + dir)
	if err != nil {
		t.Fatal(err)
	}
	listeners, _, err := Listen(e, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range listeners {
		t.Cleanup(func() { l.Close() })
	}
	go func() {
		for {
			c, err := listeners[HealthOf].Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, lines)
			c.Close()
		}
	}()
	h, err := NewHost(e.String(), "")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Health arrives as it was sent. A fault and nonsense are errors that say what to do.
func TestHealth(t *testing.T) {
	sent := Health{
		Generation: "g", Tunnel: netip.MustParseAddr("192.0.2.1"), Masquerade: netip.MustParseAddr("192.0.2.9"),
		MasqueradeMAC: MAC{2, 1}, MTU: 1500, TunnelPort: 1, OutsidePort: 2, Representors: []string{"rep0-0"}, Offload: "software",
	}
	text, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, t.TempDir()+"/dpu", string(text)+"\n")
	got, err := h.Healthy(context.Background())
	if diff := cmp.Diff(&sent, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("%v:\n%s", err, diff)
	}
	if got.PodMTU() != 1450 {
		t.Errorf("MTU %d", got.PodMTU())
	}
	got.Tunnel = netip.MustParseAddr("2001:db8::1")
	if got.PodMTU() != 1430 {
		t.Errorf("MTU over IPv6 %d", got.PodMTU())
	}
	var fault *FaultError
	var unreachable *UnreachableError
	if _, err := serve(t, t.TempDir()+"/dpu", `{"fault":"it is off"}`+"\n").Healthy(context.Background()); !errors.As(err, &fault) || fault.Fault != "it is off" {
		t.Errorf("fault: %v", err)
	}
	for _, lines := range []string{"", "x\n", `{"gateway_mac":"x"}` + "\n", `{"tunnel":7}` + "\n", strings.Repeat(" ", lineMax+1)} {
		if _, err := serve(t, t.TempDir()+"/dpu", lines).Healthy(context.Background()); !errors.As(err, &unreachable) || !strings.Contains(err.Error(), "dpu-agent") {
			t.Errorf("%.20q: %v", lines, err)
		}
	}
	nobody, err := NewHost("unix:"+t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nobody.Healthy(context.Background()); !errors.As(err, &unreachable) {
		t.Errorf("nobody: %v", err)
	}
}

// A folder that others may enter is refused, as are another user's, a symbolic link and one where a process listens; what a killed process
// has left is replaced.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	e, err := ParseEndpoint("unix:" + dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the test is about that
		t.Fatal(err)
	}
	if _, _, err := Listen(e, "", ""); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("an open folder: %v", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a folder
		t.Fatal(err)
	}
	if err := os.Chown(dir, 65534, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Listen(e, "", ""); err == nil || !strings.Contains(err.Error(), "chown root") {
		t.Errorf("another user's folder: %v", err)
	}
	if err := os.Chown(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	at, err := ParseEndpoint("unix:" + link)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Listen(at, "", ""); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a symbolic link: %v", err)
	}
	left, err := net.Listen("unix", filepath.Join(dir, HealthOf.SocketName()))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Listen(e, "", ""); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a folder in use: %v", err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	listeners, _, err := Listen(e, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(listeners) != len(Services) {
		t.Errorf("%d sockets", len(listeners))
	}
	for _, l := range listeners {
		l.Close()
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte(text), mode), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(word string) {
		t.Helper()
		if _, err := NewHost("tls:dpu1:9", dir); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want %q", err, word)
		}
	}
	want("key.pem")
	write("key.pem", "x", 0o644)
	want("chmod 600")
	write("key.pem", "x", 0o600)
	want("ca.pem")
	write("ca.pem", "x", 0o644)
	want("no certificate")
	dir = ""
	want("needs credentials")
}

// FuzzHealth reads lines of a DPU.
func FuzzHealth(f *testing.F) {
	f.Add(`{"generation":"g","tunnel":"192.0.2.1","gateway_mac":"02:00:00:00:00:01","representors":["rep0-0"]}`)
	f.Add(`{"tunnel":""}`)
	f.Fuzz(func(t *testing.T, text string) {
		h := &Health{}
		if json.Unmarshal([]byte(text), h) != nil {
			return
		}
		again, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		back := &Health{}
		if err := json.Unmarshal(again, back); err != nil || fmt.Sprint(h) != fmt.Sprint(back) {
			t.Errorf("%s: %+v, then %+v, %v", text, h, back, err)
		}
	})
}

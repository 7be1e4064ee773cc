package modes

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// newRigOnIPv6 makes a rig of modes that need no tsugiki.
func newRigOnIPv6(t *testing.T) *Runner {
	t.Helper()
	for _, name := range []string{"tayga", "haproxy", "socat", "ss"} {
		testkit.Program(t, name)
	}
	return newRig(t, Config{Modes: []Mode{IPv6, IPv4, Tayga, HAProxy, Socat}})
}

// Each mode has a way to a server on the remote, by the address that it says.
func TestTowardAnIPv6Server(t *testing.T) {
	r := newRigOnIPv6(t)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	const script = `read -r line <"/dev/tcp/$1/$2"; echo "$1 $line"`
	for i, tt := range []struct {
		mode Mode
		want string
	}{
		{IPv6, "2001:db8:1::2 hello 2001:db8:1::1"},
		{IPv4, "198.51.100.2 hello 198.51.100.1"},
		{Tayga, "198.18.0.1 hello 2001:db8:3::46"},
		{HAProxy, "127.0.0.1 hello 2001:db8:1::1"},
		{Socat, "127.0.0.1 hello 2001:db8:1::1"},
	} {
		port := uint16(7000 + i)
		listen := netip.AddrPortFrom(r.ServerAddr(tt.mode), port)
		// What socat passes on is the address of its peer, as a URL has it.
		server := "socat " + socatType("tcp", listen) + "-LISTEN:" + strings.TrimPrefix(listen.String(), hostOf(listen)+":") +
			",fork,bind=" + hostOf(listen) + ` SYSTEM:'echo hello "$SOCAT_PEERADDR"'`
		if _, err := r.Serve(ctx, tt.mode, "tcp", []uint16{port}, "sh", "-c", "exec "+server); err != nil {
			t.Fatal(err)
		}
		run, err := r.Run(ctx, tt.mode, r.Toward(tt.mode, "tcp", port, func(addr string) []string {
			return []string{"bash", "-c", script, "bash", addr, strings.TrimPrefix(listen.String(), hostOf(listen)+":")}
		})...)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := expand(strings.TrimSpace(string(run.Stdout))); got != tt.want {
			t.Errorf("mode %s: %q, want %q", tt.mode, got, tt.want)
		}
		// Its helper has ended, with what that has forked.
		if tt.mode == HAProxy || tt.mode == Socat {
			if err := r.Top.Host.WaitFree(ctx, "tcp4", port); err != nil {
				t.Errorf("mode %s: %v", tt.mode, err)
			}
		}
	}
}

// expand brings the last word, an address of IPv6 in brackets and without "::", into the usual form.
func expand(line string) string {
	i := strings.LastIndex(line, " ") + 1
	if addr, err := netip.ParseAddr(strings.Trim(line[i:], "[]")); err == nil {
		return line[:i] + addr.String()
	}
	return line
}

// The host has no IPv4 but on its loopback, whatever modes there are.
func TestHostHasNoIPv4(t *testing.T) {
	r := newRigOnIPv6(t)
	for ns, want := range map[*testkit.Namespace]string{r.Top.Host: "127.0.0.1/8", r.Top.Remote: "127.0.0.1/8"} {
		out, err := ns.Command(t.Context(), "ip", "-4", "-brief", "address").Output()
		if fields := strings.Fields(string(out)); err != nil || len(fields) != 3 || fields[2] != want {
			t.Errorf("%s has %q (%v), want %s alone", ns.Name(), out, err, want)
		}
	}
}

// A helper that does not start is an error that says why, and no wait.
func TestHelperFails(t *testing.T) {
	r := newRigOnIPv6(t)
	never := func(string) []string { return []string{"sh", "-c", "echo started"} }
	run, err := r.Run(t.Context(), HAProxy, r.Toward(HAProxy, "tcp", 0, never)...)
	if err == nil || !strings.Contains(err.Error(), "bind") || strings.Contains(err.Error(), "started") {
		t.Errorf("%v, %q", err, run.Stdout)
	}
}

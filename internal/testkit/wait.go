package testkit

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A wait looks again after pollInterval, and after a tenth of the time that it has taken so far,
// but at least every pollMost. Looking costs others their CPU: some looks run programs, and a list of
// TCP sockets has the kernel walk the hash table of all network namespaces.
const (
	pollInterval = 5 * time.Millisecond
	pollMost     = 100 * time.Millisecond
)

// pollAfter is how long a wait pauses that has taken some time.
func pollAfter(waited time.Duration) time.Duration {
	return min(max(waited/10, pollInterval), pollMost)
}

// Patience is the limit of each wait in a test. It is for hangs only: no test says by it how
// long something may take. TSUGIKI_SLOW, a number, multiplies it on a slow machine.
var Patience = patience(os.Getenv("TSUGIKI_SLOW"))

func patience(slow string) time.Duration {
	const usual = time.Minute
	times, err := strconv.ParseFloat(slow, 64)
	switch {
	case slow == "":
		return usual
	case err != nil || !(times > 0 && times <= 1000):
		fmt.Fprintf(os.Stderr, "TSUGIKI_SLOW=%s is no number from 0 to 1000 and is not used\n", slow)
		return usual
	}
	return time.Duration(times * float64(usual))
}

// socketTables are the kernel's lists of sockets, and the state that a socket
// waiting for peers has in them (include/net/tcp_states.h: TCP_LISTEN, and
// TCP_CLOSE for a UDP socket that is not connected).
var socketTables = map[string]struct {
	files []string
	state string
}{
	"tcp":  {[]string{"tcp", "tcp6"}, "0A"},
	"tcp4": {[]string{"tcp"}, "0A"},
	"tcp6": {[]string{"tcp6"}, "0A"},
	"udp":  {[]string{"udp", "udp6"}, "07"},
	"udp4": {[]string{"udp"}, "07"},
	"udp6": {[]string{"udp6"}, "07"},
}

// timeWait is TCP_TIME_WAIT of include/net/tcp_states.h.
const timeWait = "06"

// WaitListen waits until a socket of the namespace listens on a port, or for
// udp is bound to it. Network is tcp, tcp4, tcp6, udp, udp4 or udp6; without a
// digit either family does. Nothing is sent: servers that count connections
// see none of it.
func (n *Namespace) WaitListen(ctx context.Context, network string, port uint16) error {
	listens := socketTables[network].state
	return n.waitSockets(ctx, network, port, true, func(state string) bool { return state == listens })
}

// WaitFree waits until no socket of the namespace has a port, connections in TIME_WAIT apart:
// the packets that end a connection may arrive after both programs have closed it. Network is as
// for WaitListen.
func (n *Namespace) WaitFree(ctx context.Context, network string, port uint16) error {
	return n.waitSockets(ctx, network, port, false, func(state string) bool { return state != timeWait })
}

// waitSockets waits until there is a socket with a local port and such a state, or none.
func (n *Namespace) waitSockets(ctx context.Context, network string, port uint16, wanted bool, is func(state string) bool) error {
	table, ok := socketTables[network]
	if !ok {
		return fmt.Errorf("wait for sockets: unknown network %q", network)
	}
	return n.Do(func() error {
		for began := time.Now(); ; {
			found := false
			for _, file := range table.files {
				has, err := hasSocket("/proc/thread-self/net/"+file, port, is)
				if err != nil {
					return err
				}
				found = found || has
			}
			if found == wanted {
				return nil
			}
			select {
			case <-time.After(pollAfter(time.Since(began))):
			case <-ctx.Done():
				return fmt.Errorf("wait for %s port %d in %s: %w", network, port, n.name, ctx.Err())
			}
		}
	})
}

// hasSocket looks for a socket with a local port and state. The columns are
// "sl local_address rem_address st …", numbers in hexadecimal.
func hasSocket(path string, port uint16, is func(state string) bool) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("list sockets: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !is(fields[3]) {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(p) == port {
			return true, nil
		}
	}
	return false, lines.Err()
}

// Eventually runs check until it returns nil, and ends the test with the last
// error when that takes longer than Patience. Check returns what is not so yet.
// What is wrong for good it passes to Fatalf, not Errorf: check runs many times.
func Eventually(t TB, check func() error) {
	t.Helper()
	eventually(t, Patience, check)
}

func eventually(t TB, limit time.Duration, check func() error) {
	t.Helper()
	for began := time.Now(); ; {
		err := check()
		if err == nil {
			return
		}
		waited := time.Since(began)
		if waited > limit {
			t.Fatalf("still after %v: %v", limit, err)
			return
		}
		time.Sleep(pollAfter(waited))
	}
}

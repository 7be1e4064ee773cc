package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// testEngineRaw runs root's programs of a container whose engine gives it CAP_NET_RAW.
// What only that allows is refused to them, over IPv4 and IPv6, as the first process and
// as one that the engine adds. The plain datagram, which comes last, shows that the road
// is open.
func testEngineRaw(t *testing.T, n *node) {
	var l4, l6 net.PacketConn
	err := n.srv.Do(func() (err error) {
		if l4, err = net.ListenPacket("udp4", remoteAddr4+":0"); err == nil {
			l6, err = net.ListenPacket("udp6", "["+remoteAddr6+"]:0")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l4.Close()
	defer l6.Close()
	c := n.container("raw", "0.0.0.0/0", servedPort)
	delete(c.Annotations, "tsugiki.dev/ingress") // the port is web's
	c.Annotations["tsugiki.dev/egress"] += "; ::/0=" + hostAddr6
	if n.engine == "podman" { // gives it to nobody who does not ask
		c.CapAdd = []string{"NET_RAW"}
	}
	c.Args = append([]string{"sh", "-c", `grep CapBnd /proc/self/status; raw "$@"; exec tail -f /dev/null`, "sh"}, rawTo(l4)...)
	n.run(t, c)
	var first string
	testkit.Eventually(t, func() error {
		var err error
		if first, err = n.Logs("raw"); err == nil && !strings.Contains(first, "plain") {
			err = fmt.Errorf("it has printed %s", first)
		}
		return err
	})
	checkRaw(t, "the first, IPv4", first, l4)
	checkRaw(t, "an added one, IPv4", n.exec(t, "raw", append([]string{"raw"}, rawTo(l4)...)...), l4)
	checkRaw(t, "an added one, IPv6", n.exec(t, "raw", append([]string{"raw"}, rawTo(l6)...)...), l6)
	const netRaw = 1 << 13
	var bounding uint64
	if _, err := fmt.Sscanf(strings.TrimSpace(first), "CapBnd: %x", &bounding); err != nil || bounding == 0 || bounding&netRaw != 0 {
		t.Errorf("the first process may have the capabilities %#x, %v", bounding, err)
	}
	n.remove(t, "raw")
}

// rawTo are the arguments of the image's program raw.
func rawTo(l net.PacketConn) []string {
	to := l.LocalAddr().(*net.UDPAddr)
	return []string{to.IP.String(), fmt.Sprint(to.Port)}
}

// checkRaw looks at what the image's program raw has printed, and at what has come.
func checkRaw(t *testing.T, whose, printed string, l net.PacketConn) {
	t.Helper()
	if want := "mark EPERM\nraw EPERM\npacket EPERM\nplain ok\n"; !strings.HasSuffix(printed, want) {
		t.Errorf("%s: printed %q, want %q", whose, printed, want)
	}
	buf := make([]byte, 100)
	if err := l.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	size, _, err := l.ReadFrom(buf)
	if err != nil || string(buf[:size]) != "plain" {
		t.Errorf("%s: the remote got %q, %v", whose, buf[:size], err)
	}
}

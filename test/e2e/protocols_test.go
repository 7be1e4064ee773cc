package e2e

import (
	"fmt"
	"testing"
)

// Egress rules that are for one protocol. The other stays where it would be without them.
func TestEgressOfOneProtocol(t *testing.T) {
	t.Parallel()
	other6 := fmt.Sprintf("[%s]:%d", remoteAddr6, observerPort)
	observe2 := []string{"-e", "198.51.100.0/24/tcp=out", "-e", "[2001:db8:1::/64]:7070/udp=out6"}
	w := newWorld(t)
	w.prefer(t)
	observe(t, w.srv)
	for _, v := range []variant{{name: "new", egress: observe2}, {name: "bridge", bridge: true, egress: observe2}} {
		t.Run(v.name, func(t *testing.T) {
			own4 := "ENETUNREACH"
			if v.bridge {
				own4 = hostAddr4 // translated
			}
			o := w.obey(t, t.TempDir(), v.flags(w)...)
			o.want(sourceAddr4, "dial a tcp %s", remoteObserver())
			o.want(own4, "dial b udp %s", remoteObserver())
			o.want(sourceAddr6, "dial c udp %s", other6)
			o.want("ENETUNREACH", "dial d tcp %s", other6)
			o.release()
		})
	}
}

package host

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/outsource/vsock"
	"github.com/tsugiki/tsugiki/outsource/wire"
)

// TestMuteSupervisor has a supervisor with many servers that answers no question. A bind of a taken port
// waits for it once, and not once for each server.
func TestMuteSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.mute = true
		taken := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
		r.want(taken, 0)
		for range 20 {
			r.want(r.bound(netip.MustParseAddrPort("127.0.0.1:0")), 0)
		}
		start := time.Now()
		r.want(r.bound(taken.Name), unix.EADDRINUSE)
		if took := time.Since(start); took != alivePatience {
			t.Errorf("the bind has waited %s", took)
		}
	})
}

// TestTooManyRequests has a guest make more requests than may wait for a reply. The stream ends, because
// its reader would have to wait.
func TestTooManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.mute = true
		taken := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
		r.want(taken, 0)
		b, err := (&wire.Message{Op: wire.Bind, Type: unix.SOCK_STREAM, Name: taken.Name, ID: 1}).Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range wire.RequestsMax + 1 {
				_, _ = r.conn.Write(b) // the end of the stream is an error
			}
		}()
		synctest.Wait() // no time passes
		if r.vm.find(taken.Handle) != nil {
			t.Error("the stream has not ended")
		}
	})
}

// TestEndWithDials has listeners end whose dials to the guest are not answered: none waits for another.
func TestEndWithDials(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"guest":  func(r *rig) { r.vm.Close() },
		"stream": func(r *rig) { r.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			dialed, finished := make(chan struct{}), make(chan struct{})
			finish := sync.OnceFunc(func() { close(finished) })
			t.Cleanup(finish)
			r.guest.answer = func() error {
				dialed <- struct{}{}
				<-finished
				return vsock.ErrGone
			}
			servers := make([]*handle, 3)
			for i := range servers {
				m := r.bound(netip.MustParseAddrPort("127.0.0.1:0"))
				r.want(r.ask(&wire.Message{Op: wire.Listen, Handle: m.Handle, Number: 5}), 0)
				servers[i] = r.vm.find(m.Handle)
				c, err := net.Dial("tcp", m.Name.String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				<-dialed
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				end(r)
			}()
			testkit.Eventually(t, func() error {
				for i, h := range servers {
					if !h.in(removed) {
						return fmt.Errorf("server %d is there", i)
					}
				}
				return nil
			})
			finish()
			<-ended
		})
	}
}

package guest

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// TestSecondSupervisor starts a supervisor while another one makes the device. It starts its program when the
// device has its routes.
func TestSecondSupervisor(t *testing.T) {
	ns := testkit.Build(t, testkit.Options{NoRemote: true}).Host
	other, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("skip: needs %s: %v", deviceFile, err)
	}
	defer unix.Close(other)
	if err := unix.Flock(other, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	routePatience = testkit.Patience
	begins, routed := make(chan struct{}), make(chan bool, 1)
	go func() {
		err := ns.Do(func() error {
			close(begins)
			var h holder
			err := h.serve(owns[:1], slog.New(slog.DiscardHandler))
			routed <- netns.DatagramsRouted(owns[0])
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-begins
	err = ns.Do(func() error {
		device, err := unix.Open(deviceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(device) })
		if err := makeDevice(device); err != nil {
			return err
		}
		return netns.RouteDatagrams(deviceName, deviceMTU, owns[:1])
	})
	if is := <-routed; err != nil || !is {
		t.Errorf("the program begins with a route: %v, %v", is, err)
	}
}

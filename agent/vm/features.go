package vm

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/kernel"
	"github.com/tsugiki/tsugiki/outsource/stream"
	"github.com/tsugiki/tsugiki/outsource/vsock"
)

// Features are the ways in which a VMM can give this host its guest's connections.
func Features() []kernel.Feature {
	return []kernel.Feature{
		{
			Name: "guests by vhost-user", Lost: "no guests of QEMU and User-Mode Linux by a socket (tsugiki guest attach --vsock PATH)",
			Probe: probeDevice,
		},
		{
			Name: "guests by hybrid vsock", Lost: "no guests of Firecracker and cloud-hypervisor (--vsock hybrid:PATH)",
			Probe: func(*kernel.Scratch) (string, error) { return "", stream.ProbeSplice() },
		},
		{
			Name: "guests by AF_VSOCK", Lost: "no guests by context id (--vsock CID)",
			Probe: func(*kernel.Scratch) (string, error) { return "", stream.Supported() },
		},
	}
}

// probeDevice starts a device, and asks what a VMM asks first.
func probeDevice(*kernel.Scratch) (string, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fds[0]), "device")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		unix.Close(fds[1])
		return "", err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- vsock.Serve(c.(*net.UnixConn), cidDefault, func(*vsock.Device) vsock.Handler { return nil })
	}()
	err = vsock.Probe(fds[1])
	unix.Close(fds[1])
	if serr := <-ended; err == nil {
		err = serr
	}
	if err != nil {
		return "", fmt.Errorf("serve a vsock device: %w", err)
	}
	return "", nil
}

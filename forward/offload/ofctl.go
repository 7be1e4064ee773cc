package offload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
)

// ofctl is a switch to which ovs-ofctl speaks: it parses the flows, and finds what differs from
// those that the switch has.
type ofctl struct{ program, socket string }

// OpenSwitch finds ovs-ofctl, and the socket to which it connects. ovs-ofctl does not know the
// service's name in TLS, so that of a tls endpoint is a socket of the controller's own, in a folder
// that is root's alone. stop ends what was started.
func OpenSwitch(h *dpu.Host) (_ Switch, stop func(), err error) {
	program, err := exec.LookPath("ovs-ofctl")
	if err != nil {
		return nil, nil, errors.New("there is no ovs-ofctl; install openvswitch-switch or openvswitch-common")
	}
	if path := h.Socket(dpu.OpenFlow); path != "" {
		return &ofctl{program, path}, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "tsugiki-offload-") // 0700
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, dpu.OpenFlow.SocketName())
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { forwardTo(ctx, h, c) })
		}
	})
	return &ofctl{program, path}, func() {
		cancel()
		l.Close()
		work.Wait()
		os.RemoveAll(dir)
	}, nil
}

// forwardTo connects ovs-ofctl to the DPU.
func forwardTo(ctx context.Context, h *dpu.Host, c net.Conn) {
	defer c.Close()
	to, err := h.Dial(ctx, dpu.OpenFlow)
	if err != nil {
		return // ovs-ofctl says that the connection has ended
	}
	defer context.AfterFunc(ctx, func() { to.Close() })()
	var work sync.WaitGroup
	work.Go(func() {
		_, _ = io.Copy(to, c)
		to.Close()
	})
	_, _ = io.Copy(c, to)
	c.Close()
	work.Wait()
}

func (o *ofctl) Replace(ctx context.Context, list []flows.Flow) error {
	lines := make([]string, len(list))
	for i, f := range list {
		lines[i] = f.String()
	}
	return o.bundle(ctx, "replace-flows", lines)
}

func (o *ofctl) Change(ctx context.Context, lines []string) error {
	return o.bundle(ctx, "add-flows", lines)
}

// bundle sends lines, which the switch takes all or none of.
func (o *ofctl) bundle(ctx context.Context, command string, lines []string) error {
	cmd := exec.CommandContext(ctx, o.program, "-O", "OpenFlow15", "--bundle", "--no-names", command, "unix:"+o.socket, "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	said := strings.Join(strings.Fields(string(out)), " ")
	if ctx.Err() != nil {
		return fmt.Errorf("the switch does not take flows: %w", context.Cause(ctx))
	}
	return fmt.Errorf("the switch refuses flows: ovs-ofctl: %w: %.400s", err, said)
}

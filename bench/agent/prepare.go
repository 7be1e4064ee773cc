package main

import (
	"context"
	"embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/bench/measure"
	"github.com/tsugiki/tsugiki/bench/netdrive"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

//go:embed resident/*.c
var residentSource embed.FS

// firstServer is the remote's first port, and serverLimit ends a server that nobody
// ended, in seconds.
const (
	firstServer = 7000
	serverLimit = "7200"
)

// othersRoom is what a bare and a bridged container take at most beside a grafted one, and
// the programs of all three.
var othersRoom = rig.Room{Memory: 9 << 20, Processes: 5, Files: 13, Disk: 136 << 10}

// newRig makes the rig, in which all containers share one file system.
func newRig(o *options) (*rig.Rig, error) {
	if err := testkit.Programs("iptables-save"); err != nil {
		return nil, err
	}
	if _, err := rig.FindPlugins(); err != nil {
		return nil, err
	}
	bin, err := testkit.Binaries()
	if err != nil {
		return nil, fmt.Errorf("find tsugiki: %w", err)
	}
	return rig.New(rig.Options{Runtime: o.runtime, Storage: rig.Shared, Bin: bin})
}

// prepare puts the programs into the containers' file system, and starts the servers and
// the agent.
func (s *session) prepare(ctx context.Context) error {
	drive, err := netdrive.Build(ctx, s.rig.Dir())
	if err != nil {
		return err
	}
	resident, err := netdrive.Compile(ctx, residentSource, filepath.Join(s.rig.Dir(), "resident"))
	if err != nil {
		return err
	}
	if err := s.rig.Install(drive, resident); err != nil {
		return err
	}
	if err := s.serve(ctx, drive); err != nil {
		return err
	}
	_, err = s.rig.StartAgent(ctx, "")
	return err
}

// serve starts the remote's servers, one for each client: connections that are left
// in TIME_WAIT must not meet.
func (s *session) serve(ctx context.Context, drive string) error {
	s.servers = make(map[string]netip.AddrPort)
	for i, client := range append(slices.Clone(clients), "connect") {
		port := uint16(firstServer + i)
		s.servers[client] = netip.AddrPortFrom(rig.RemoteAddr(), port)
		args := append(s.driveArgs("server", client), "-t", serverLimit)
		if err := s.rig.ServeOutside(ctx, port, append([]string{drive}, args[1:]...)...); err != nil {
			return err
		}
	}
	return nil
}

// machine describes the machine, with the congestion control of the host's namespace.
func (s *session) machine(ctx context.Context) (measure.Machine, error) {
	cc, err := s.rig.Host(ctx, "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return measure.Machine{}, err
	}
	return measure.ThisMachine(strings.TrimSpace(string(cc)))
}

// checkRoom refuses what the machine has no room for, and says what the containers take, one
// of each kind at a time.
func (s *session) checkRoom(containers int) (string, error) {
	if _, err := s.rig.CheckRoom(containers, rig.Bridge, rig.Shared, othersRoom); err != nil {
		return "", err
	}
	said, err := s.rig.CheckRoom(containers, rig.Graft, rig.Shared, othersRoom)
	return said + ", with a container of each other kind beside each", err
}

// checkEmpty checks that nothing is left of any container, and that the agents have had
// nothing to complain of.
func (s *session) checkEmpty() error {
	agent := s.rig.Agent()
	list, err := agent.Client().Containers()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(agent.Log())
	if err != nil {
		return err
	}
	var complaints []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			complaints = append(complaints, line)
		}
	}
	if left := s.rig.Running(); len(left) > 0 || len(list) > 0 || len(complaints) > 0 {
		return fmt.Errorf("containers %v are left, the agent still has %d, and has logged %d warnings and errors:\n%s",
			left, len(list), len(complaints), strings.Join(complaints[:min(10, len(complaints))], ""))
	}
	return nil
}

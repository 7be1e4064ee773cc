package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/tsugiki/tsugiki/density/rig"
)

// kind is a way to connect a container to the network.
type kind string

const (
	bare   kind = "bare" // not at all
	bridge kind = "bridge"
	graft  kind = "graft"
)

var kinds = []kind{bare, bridge, graft}

// networks are the rig's names of the kinds.
var networks = map[kind]string{bare: rig.None, bridge: rig.Bridge, graft: rig.Graft}

func names(kinds []kind) []string {
	var list []string
	for _, k := range kinds {
		list = append(list, string(k))
	}
	return list
}

const (
	servedPort = 80 // in containers
	ready      = "ready"
	// dialLimit is how long a program outside may take to reach a container.
	dialLimit = 30 * time.Second
)

// start starts container i of a kind, and waits until it serves.
func (s *session) start(ctx context.Context, k kind, i int) (*rig.Container, error) {
	spec := rig.Spec{
		Name: fmt.Sprintf("%s-%d", k, i), Network: networks[k], Ready: ready,
		Args: []string{"resident", "serve", strconv.Itoa(servedPort)},
	}
	if k == bare {
		return s.rig.Start(ctx, spec)
	}
	spec.Ports = []uint16{servedPort}
	c, err := s.rig.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	if err := s.rig.DialOutside(ctx, c.Address(servedPort)); err != nil {
		return nil, fmt.Errorf("container %s is not reached: %w", c.Name(), err)
	}
	return c, nil
}

// worker is a grafted container that makes one call again and again, and can be asked how
// long the longest one took.
type worker struct {
	*rig.Container
	questions *os.File
}

func (s *session) startWorker(ctx context.Context, call string) (w *worker, err error) {
	args := []string{"resident", call, strconv.Itoa(servedPort)}
	if call == "connect" {
		to := s.servers[call]
		args = []string{"resident", call, to.Addr().String(), strconv.Itoa(int(to.Port()))}
	}
	w = &worker{}
	input, questions, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	w.questions = questions
	w.Container, err = s.rig.Start(ctx, rig.Spec{
		Name: call, Network: rig.Graft, Args: args, Ready: ready, Ports: []uint16{servedPort}, Input: input,
	})
	if err != nil {
		questions.Close()
	}
	return w, err
}

// longest is how long the longest call took since the last question.
func (w *worker) longest(ctx context.Context) (time.Duration, error) {
	_, asked := w.questions.Write([]byte{'?'})
	line, err := w.Line(ctx) // of a program that has ended, the error says why
	if err := errors.Join(asked, err); err != nil {
		return 0, fmt.Errorf("container %s: %w", w.Name(), err)
	}
	var us, times int64
	if _, err := fmt.Sscan(line, &us, &times); err != nil {
		return 0, fmt.Errorf("container %s says %q: %w", w.Name(), line, err)
	}
	return time.Duration(us) * time.Microsecond, nil
}

// clients are the containers of which connections are counted: in the host's
// namespace, and in the modes of the graft.
var clients = []string{"host", "auto", "seccomp"}

// rate counts the connections that a container of its own makes in a second.
func (s *session) rate(ctx context.Context, client string, d time.Duration) (float64, error) {
	spec := rig.Spec{Name: "crr-" + client, Network: rig.Graft, Mode: client}
	if client == "host" {
		spec.Network, spec.Mode = rig.Host, ""
	}
	spec.Args = append(s.driveArgs("client", client), "-t", fmt.Sprint(d.Seconds()), "-w", "0.2")
	out, err := s.rig.Run(ctx, spec)
	if err != nil {
		return 0, fmt.Errorf("connections of %s: %w", client, err)
	}
	var drive struct {
		Ops     float64 `json:"ops"`
		Seconds float64 `json:"seconds"`
	}
	if err := json.Unmarshal(out, &drive); err != nil || drive.Ops == 0 || drive.Seconds <= 0 {
		return 0, fmt.Errorf("connections of %s: netdrive measured nothing: %s: %w", client, out, err)
	}
	return drive.Ops / drive.Seconds, nil
}

// driveArgs are the command line of one side of netdrive.
func (s *session) driveArgs(side, client string) []string {
	at := s.servers[client]
	return []string{"netdrive", side, "tcp_crr", at.Addr().String(), strconv.Itoa(int(at.Port()))}
}
